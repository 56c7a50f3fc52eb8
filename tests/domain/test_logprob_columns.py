import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.domain.columns import pack_f32, pack_i32
from layered_llm.domain.ids import StepId
from layered_llm.domain.messages.logprobs import (
    NO_ENTRIES,
    LogprobColumns,
    LogprobEntries,
    PromptLogprobs,
    each_row,
)
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from support.logprobs import columns_of, entries


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(max_value=0, width=32)), max_size=3), max_size=4))
def test_entries_come_out_as_they_went_in(rows: list[list[tuple[int, float]]]) -> None:
    packed = [entries(row) for row in rows]
    columns = LogprobColumns.of(packed)
    assert packed == list(each_row(columns, len(rows), NO_ENTRIES))
    assert (columns is None) is not any(rows)


@pytest.mark.parametrize(
    ("counts", "ids", "logprobs"), [([1, 1], [5], [-1.0]), ([1], [5, 6], [-1.0, -2.0]), ([1], [5], []), ([2, -1], [5], [-1.0])]
)
def test_columns_that_do_not_fit_together_are_refused(counts: list[int], ids: list[int], logprobs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"log probabilities|unequal"):
        LogprobColumns(counts=pack_i32(counts), token_ids=pack_i32(ids), logprobs=pack_f32(logprobs))


def test_a_message_tells_of_each_of_its_tokens_or_of_none() -> None:
    columns = columns_of([[(5, -1.0)]])
    with pytest.raises(ValueError, match="log probabilities of 1 tokens beside 2 tokens"):
        StepCompleted(step=StepId(1), token_ids=pack_i32([5, 6]), device_us=0, open_slots=1, logprobs=columns)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=4))
def test_each_row_has_its_own_prompt(prompts: list[list[int]]) -> None:
    parts = [columns_of([[(token, -1.0)] for token in prompt]) for prompt in prompts]
    rows = [part for each in parts for part in (None, each)]
    told = PromptLogprobs.of(rows)
    assert rows == list(each_row(told, len(rows), None))
    assert (told is None) is not any(rows)


def test_prompts_that_do_not_fit_their_counts_are_refused() -> None:
    columns = columns_of([[(5, -1.0)]])
    assert columns is not None
    with pytest.raises(ValueError, match="1 prompt tokens for counts that add up to 2"):
        PromptLogprobs(token_counts=pack_i32([1, 1]), columns=columns)


def test_ranks_stay_with_their_tokens_whatever_is_joined() -> None:
    unranked = columns_of([[(1, -1.0)]])
    ranked = LogprobColumns.of([LogprobEntries(token_ids=pack_i32([2]), logprobs=pack_f32([-2.0]), rank=7), NO_ENTRIES])
    assert unranked is not None
    assert ranked is not None

    joined = LogprobColumns.joined([unranked, ranked, unranked])

    assert [0, 7, 0, 0] == [one.rank for one in joined]
    assert b"" == LogprobColumns.joined([unranked, unranked]).ranks
    assert joined == LogprobColumns.of(joined)


def test_a_rank_for_half_of_the_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="ranks"):
        LogprobColumns(counts=pack_i32([1, 1]), token_ids=pack_i32([1, 2]), logprobs=pack_f32([0, 0]), ranks=pack_i32([1]))


def test_a_prompts_columns_are_divided_without_an_object_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [columns_of([[(token, -1.0)] for token in range(100)]), None, columns_of([[(5, -1.0), (6, -2.0)]])]
    told = PromptLogprobs.of(parts)
    monkeypatch.setattr(LogprobEntries, "__init__", lambda *_, **__: pytest.fail("made an object"))
    assert parts == list(each_row(told, 3, None))
