import attrs
import numpy as np
import pytest

from layered_llm.domain.columns import pack_i8
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep
from layered_llm.runtime.device.host_slots import HostSlots
from layered_llm.runtime.device.step_inputs import StepInputs
from support.runtime_driver import make_step, open_slot, sampling

LIMITS = RuntimeLimits(pages=8, page_size_tokens=4, slots=3, context_tokens=16, vocabulary_size=100)


def table_with_prompt(*prompt: int) -> HostSlots:
    table = HostSlots(LIMITS)
    table.apply(make_step(opened=[open_slot(1, prompt)], pages=[(1, 0, [5, 2])]))
    return table


def sample(table: HostSlots, step: ExecuteStep, *token_ids: int) -> StepInputs:
    """Executes `step`, whose rows sample `token_ids`."""
    inputs = table.apply(step)
    table.append_sampled(inputs, np.array(token_ids, np.int32))
    return inputs


def test_a_slot_keeps_prompt_and_output_apart() -> None:
    table = HostSlots(LIMITS)
    table.apply(make_step(opened=[open_slot(2, [1, 2, 3], [7, 8])]))
    assert [[1, 2, 3], [7, 8]] == [table.choices[2].prompt_ids.tolist(), table.output_ids(2).tolist()]


def test_seen_tokens_grow_with_the_output_and_go_with_the_slot() -> None:
    table = HostSlots(LIMITS)
    params = sampling(repetition_penalty=1.2)
    opened = [open_slot(0, [1, 2], [4], params=params), open_slot(1, [1])]
    pages, order = [(0, 0, [0]), (1, 0, [1])], [(1, 0, 1, True), (0, 0, 3, True)]
    sample(table, make_step(opened=opened, pages=pages, rows=order), 8, 9)
    seen = table.choices[0].seen
    assert seen is not None
    assert [1, 2, 4, 9] == seen.ids.tolist()
    assert table.choices[1].seen is None
    table.apply(make_step(retired=[0], opened=[]))
    table.apply(make_step(opened=[open_slot(0, [1])]))
    assert table.choices[0].seen is None


def test_a_prompt_is_reported_by_its_own_rows_until_the_last_has_sampled() -> None:
    table = HostSlots(LIMITS)
    params = sampling(prompt_logprobs=2)
    opened, pages = [open_slot(0, [1, 2, 3], params=params), open_slot(1, [4])], [(0, 0, [0]), (1, 0, [1])]
    first = table.apply(make_step(opened=opened, pages=pages, rows=[(0, 0, 2, False)]))
    reported = [table.reports_prompts(first)]
    other = sample(table, make_step(rows=[(1, 0, 1, True)]), 7)
    reported.append(table.reports_prompts(other))
    last = sample(table, make_step(rows=[(0, 2, 1, True)]), 9)

    assert ([True, False], False, set()) == (reported, table.reports_prompts(last), table.reported)


def test_a_bias_outside_the_vocabulary_is_our_own_fault() -> None:
    with pytest.raises(InvariantViolated, match="outside the vocabulary"):
        HostSlots(LIMITS).apply(make_step(opened=[open_slot(0, [1], params=sampling(biases={100: 1.0}))]))


def test_a_sampled_token_joins_the_output() -> None:
    table = table_with_prompt(1, 2)
    sample(table, make_step(rows=[(1, 0, 2, True)]), 9)
    assert [9] == table.output_ids(1).tolist()


def test_a_run_joins_the_output_and_what_penalties_have_seen_and_no_token_changes_neither() -> None:
    table = HostSlots(LIMITS)
    opened = [open_slot(slot, [1, 2], params=sampling(repetition_penalty=1.2)) for slot in (0, 1)]
    rows = [(0, 0, 2, True), (1, 0, 2, True)]
    inputs = table.apply(make_step(opened=opened, pages=[(0, 0, [0]), (1, 0, [1])], rows=rows))
    table.append_sampled(inputs, np.array([8, 9], np.int32), np.array([2, 0]))
    seen = [choice.seen.ids.tolist() for choice in table.choices.values() if choice.seen is not None]

    assert ([8, 9], []) == (table.output_ids(0).tolist(), table.output_ids(1).tolist())
    assert [[1, 2, 8, 9], [1, 2]] == seen


def test_tokens_are_flattened_row_after_row_with_their_cells() -> None:
    table = table_with_prompt(10, 11, 12, 13, 14, 15)
    flat = table.apply(make_step(opened=[open_slot(0, [20, 21])], pages=[(0, 0, [7])], rows=[(0, 0, 2, True), (1, 3, 3, True)]))
    assert [20, 21, 13, 14, 15] == flat.token_ids.tolist()
    assert [0, 1, 3, 4, 5] == flat.positions.tolist()
    assert [28, 29, 23, 8, 9] == flat.cells.tolist()


def test_page_deltas_append_and_replace() -> None:
    table = table_with_prompt(1, 2)
    inputs = table.apply(make_step(pages=[(1, 2, [6]), (1, 1, [3])]))
    assert [5, 3, 6, 0] == inputs.page_tables[1, :4].tolist()


def test_a_retired_slot_may_be_opened_again_in_the_same_step() -> None:
    table = table_with_prompt(1, 2, 3)
    table.apply(make_step(retired=[1], opened=[open_slot(1, [4])], pages=[(1, 0, [0])], rows=[(1, 0, 1, True)]))
    assert [4] == table.choices[1].prompt_ids.tolist()
    assert {1} == table.choices.keys()


def test_the_first_row_may_skip_a_cached_prefix() -> None:
    table = table_with_prompt(1, 2, 3, 4, 5, 6)
    inputs = table.apply(make_step(rows=[(1, 4, 2, True)]))
    assert [4] == inputs.starts.tolist()


def test_a_row_behind_replaced_pages_may_skip_what_they_hold() -> None:
    table = table_with_prompt(*range(12))
    table.apply(make_step(rows=[(1, 0, 2, False)]))
    inputs = table.apply(make_step(pages=[(1, 0, [6, 7, 4])], rows=[(1, 8, 4, True)]))
    assert [6, 7, 4] == inputs.page_tables[1, :3].tolist()


def test_the_context_can_be_filled() -> None:
    table = HostSlots(LIMITS)
    rows = [(0, 0, 16, True)]
    sample(table, make_step(opened=[open_slot(0, range(16))], pages=[(0, 0, [0, 1, 2, 3])], rows=rows), 3)
    assert [3] == table.output_ids(0).tolist()


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("is retired but not open", make_step(retired=[0])),
        ("already open", make_step(opened=[open_slot(1, [1])])),
        ("out of range", make_step(opened=[open_slot(3, [1])])),
        ("0 prompt", make_step(opened=[open_slot(0, [])])),
        ("17 prompt", make_step(opened=[open_slot(0, range(17))])),
        ("outside the vocabulary", make_step(opened=[open_slot(0, [100])])),
        ("outside the vocabulary", make_step(opened=[open_slot(0, [1], [-1])])),
        ("not open", make_step(pages=[(0, 0, [1])])),
        ("of group 0 alone", attrs.evolve(make_step(pages=[(1, 0, [1])]), page_groups=pack_i8([1]))),
        ("page id is outside", make_step(pages=[(1, 2, [8])])),
        ("page id is outside", make_step(pages=[(1, 2, [-1])])),
        ("do not fit a table", make_step(pages=[(1, 3, [1])])),
        ("do not fit a table", make_step(pages=[(1, 2, [1, 3, 4, 6])])),
        ("not open", make_step(rows=[(0, 0, 1, False)])),
        ("not open", make_step(rows=[(-1, 0, 1, False)])),
        ("two rows", make_step(rows=[(1, 0, 1, False), (1, 1, 1, False)])),
        ("has no tokens", make_step(rows=[(1, 0, 0, False)])),
        ("does not start", make_step(rows=[(1, -2, 1, False)])),
        ("before its prefill is complete", make_step(rows=[(1, GO_ON, 1, True)])),
        ("does not start", make_step(rows=[(1, 9, 1, False)])),
        ("beyond its known tokens", make_step(rows=[(1, 0, 10, True)])),
        ("beyond its page table", make_step(rows=[(1, 0, 9, True)])),
        ("samples before", make_step(rows=[(1, 0, 8, True)])),
    ],
)
def test_a_step_that_contradicts_the_state_is_our_fault(fault: str, step: ExecuteStep) -> None:
    table = table_with_prompt(*range(9))
    with pytest.raises(InvariantViolated, match=fault):
        table.apply(step)


@pytest.mark.parametrize("start", [0, 2, 4])
def test_a_later_row_starts_exactly_where_the_computed_tokens_end(start: int) -> None:
    table = table_with_prompt(1, 2, 3, 4, 5)
    table.apply(make_step(rows=[(1, 0, 3, False)]))
    with pytest.raises(InvariantViolated, match="does not start"):
        table.apply(make_step(rows=[(1, start, 1, False)]))


def test_page_tables_come_as_one_matrix() -> None:
    table = table_with_prompt(1, 2)
    inputs = table.apply(make_step(opened=[open_slot(0, [1])], pages=[(0, 0, [4])]))
    assert [[4, 0], [5, 2]] == inputs.page_tables[:2, :2].tolist()
