from typing import Final

import attrs
import numpy as np
import pytest

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep
from layered_llm.runtime.device.host_slots import HostSlots
from support.runtime_driver import make_step, open_slot

CONTEXT: Final = 18
LIMITS: Final = RuntimeLimits(pages=30, page_size_tokens=4, slots=3, context_tokens=CONTEXT, vocabulary_size=100)
Pages = list[tuple[int, int, list[int]]]


class Table:
    """A slot table whose steps sample 50, 51, 52 …; slots 0 and 1 have prompts of 3 and 6 tokens, and 2 pages each."""

    def __init__(self) -> None:
        self._table = HostSlots(LIMITS)
        self._sampled = 50
        opened = [open_slot(0, [10, 11, 12]), open_slot(1, [20, 21, 22, 23, 24, 25])]
        rows = [(0, 0, 3, True), (1, 0, 6, True)]
        self.step(make_step(opened=opened, pages=[(0, 0, [7, 3]), (1, 0, [9, 2])], rows=rows))

    def step(self, step: ExecuteStep) -> tuple[bool, list[int], list[int], list[int], list[int]]:
        """Whether it continued, then token ids, positions, cells, and ends."""
        inputs = self._table.apply(step)
        told = (
            inputs.continues,
            *(inputs.token_ids.tolist(), inputs.positions.tolist(), inputs.cells.tolist()),
            inputs.ends.tolist(),
        )
        samples = len(inputs.sampled)
        self._table.append_sampled(inputs, np.arange(self._sampled, self._sampled + samples, dtype=np.int32))
        self._sampled += samples
        return told

    def decode(self, *starts: int, pages: Pages | None = None) -> tuple[bool, list[int], list[int], list[int], list[int]]:
        """A token of each of the first slots, which go on; what is computed must start at `starts`."""
        done = self.step(make_step(pages=pages or [], rows=[(slot, GO_ON, 1, True) for slot in range(len(starts))]))
        assert list(starts) == done[2]
        return done


def test_steps_of_the_same_slots_continue_each_other() -> None:
    table = Table()
    assert [
        (False, [50, 51], [3, 6], [31, 10], [4, 7]),
        (True, [52, 53], [4, 7], [12, 11], [5, 8]),
        (True, [54, 55], [5, 8], [13, 20], [6, 9]),
        (True, [56, 57], [6, 9], [14, 21], [7, 10]),
    ] == [
        table.decode(3, 6),
        table.decode(4, 7),
        table.decode(5, 8, pages=[(1, 2, [5])]),
        table.decode(6, 9),
    ]


def test_pages_that_are_replaced_are_used_from_then_on() -> None:
    table = Table()
    table.decode(3, 6)
    table.decode(4, 7)
    table.decode(5, 8, pages=[(1, 2, [5])])
    assert (True, [56, 57], [6, 9], [42, 21], [7, 10]) == table.decode(6, 9, pages=[(0, 0, [11, 10])])


@pytest.mark.parametrize(
    "step",
    [
        make_step(rows=[(0, 4, 1, True)]),
        make_step(rows=[(1, 7, 1, True), (0, 4, 1, True)]),
        make_step(rows=[(0, 4, 1, True), (1, 7, 1, False)]),
        make_step(retired=[2], opened=[open_slot(2, [1])], rows=[(0, 4, 1, True), (1, 7, 1, True)]),
    ],
)
def test_other_rows_end_a_run(step: ExecuteStep) -> None:
    table = Table()
    table.step(make_step(opened=[open_slot(2, [1])]))
    table.decode(3, 6)
    assert not table.step(step)[0]


def test_a_slot_that_was_opened_again_does_not_continue() -> None:
    table = Table()
    table.decode(3)
    opened = open_slot(0, [10, 11, 12, 13], [70])
    again = make_step(retired=[0], opened=[opened], pages=[(0, 0, [4, 5])], rows=[(0, 4, 1, True)])
    assert (False, [70], [4], [20], [5]) == table.step(again)


def test_a_step_without_rows_ends_a_run() -> None:
    table = Table()
    table.decode(3, 6)
    table.step(make_step())
    assert (False, [52, 53], [4, 7], [12, 11], [5, 8]) == table.decode(4, 7)


def test_prefill_beside_decodes_ends_a_run() -> None:
    table = Table()
    table.decode(3, 6)
    rows = [(0, 4, 1, True), (1, 7, 1, True), (2, 0, 3, False)]
    step = make_step(opened=[open_slot(2, range(4))], pages=[(2, 0, [0])], rows=rows)
    assert (False, [52, 53, 0, 1, 2], [4, 7, 0, 1, 2], [12, 11, 0, 1, 2], [5, 8, 3]) == table.step(step)


@pytest.mark.parametrize("starts", [(3, 7), (4, 6), (5, 7), (4, 8)])
def test_a_run_goes_on_exactly_where_its_tokens_end(starts: tuple[int, int]) -> None:
    table = Table()
    table.decode(3, 6)
    with pytest.raises(InvariantViolated, match="does not start"):
        table.step(make_step(rows=[(slot, start, 1, True) for slot, start in enumerate(starts)]))


@pytest.mark.parametrize(("count", "fault"), [(0, "has no tokens"), (2, "beyond its known tokens")])
def test_a_run_goes_on_by_one_token(count: int, fault: str) -> None:
    table = Table()
    table.decode(3, 6)
    with pytest.raises(InvariantViolated, match=fault):
        table.step(make_step(rows=[(0, 4, 1, True), (1, 7, count, True)]))


def test_a_run_needs_pages() -> None:
    table = Table()
    table.decode(3, 6)
    table.decode(4, 7)
    with pytest.raises(InvariantViolated, match="tokens 8 … 8, goes beyond its page table"):
        table.decode(5, 8)


def test_a_run_ends_with_the_context() -> None:
    table = Table()
    table.decode(3, 6, pages=[(1, 2, [4, 5, 6])])
    for start in range(7, CONTEXT):
        table.decode(start - 3, start, pages=[(0, 2, [0])] if start == 11 else [(0, 3, [1])] if start == 15 else [])
    with pytest.raises(InvariantViolated, match="goes beyond the context"):
        table.decode(CONTEXT - 3, CONTEXT)


def test_a_run_whose_tokens_were_not_sampled_does_not_continue() -> None:
    table = HostSlots(LIMITS)
    table.apply(make_step(opened=[open_slot(0, [1])], pages=[(0, 0, [0])]))
    table.apply(make_step(rows=[(0, 0, 1, True)]))
    with pytest.raises(InvariantViolated, match="beyond its known tokens"):
        table.apply(make_step(rows=[(0, 1, 1, True)]))


def test_a_row_that_yields_nothing_is_computed_again_and_one_that_yields_two_goes_on_behind_them() -> None:
    slots = HostSlots(attrs.evolve(LIMITS, decode_tokens=2))
    opened = [open_slot(0, [10, 11, 12]), open_slot(1, [20, 21, 22, 23, 24, 25])]
    step = make_step(opened=opened, pages=[(0, 0, [7, 3]), (1, 0, [9, 2, 4])], rows=[(0, 0, 3, True), (1, 0, 6, True)])
    slots.append_sampled(slots.apply(step), np.array([30, 40], np.int32))
    goes_on = make_step(rows=[(0, GO_ON, 2, True), (1, GO_ON, 2, True)])

    slots.append_sampled(slots.apply(goes_on), np.array([41, 42], np.int32), np.array([0, 2]))
    inputs = slots.apply(goes_on)

    assert ([3, 8], [30, 42]) == (inputs.positions.tolist(), inputs.token_ids.tolist())
