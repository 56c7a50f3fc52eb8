"""One step from its planning to its acknowledgement.

Must not know: why a row is in the step, budgets, credit.

Invariant: what the runtime samples comes back in the order of `sampled`.
"""

import attrs

from layered_llm.domain.columns import pack_i8, pack_i32
from layered_llm.domain.ids import PageId, SlotId, StepId
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, OpenSlot
from layered_llm.scheduling.pace import attended_tokens
from layered_llm.scheduling.sequences import Sequence


@attrs.frozen
class Idle:
    """Nothing to send: no work, no credit, or as many steps in flight as may be."""


@attrs.define(eq=False)
class PlannedStep:
    """Rows of a step, filled while it is planned and kept until it is acknowledged."""

    step: StepId
    retired: list[SlotId] = attrs.field(init=False, factory=list)
    started: list[Sequence] = attrs.field(init=False, factory=list)
    """Choices whose slot the step opens."""
    preempted: list[Sequence] = attrs.field(init=False, factory=list)
    """Choices that gave their pages up for this step."""
    opened: list[OpenSlot] = attrs.field(init=False, factory=list)
    rows: list[Sequence] = attrs.field(init=False, factory=list)
    slots: list[SlotId] = attrs.field(init=False, factory=list)
    starts: list[int] = attrs.field(init=False, factory=list)
    counts: list[int] = attrs.field(init=False, factory=list)
    sampled: list[Sequence] = attrs.field(init=False, factory=list)
    decode_rows: int = attrs.field(init=False, default=0)
    """Rows that compute the newest token of an output; the other rows are chunks of prompts."""
    open_slots: int = attrs.field(init=False, default=0)
    """Slots that hold state in the runtime after this step."""
    _samples: list[int] = attrs.field(init=False, factory=list)
    _page_slots: list[SlotId] = attrs.field(init=False, factory=list)
    _page_counts: list[int] = attrs.field(init=False, factory=list)
    _page_offsets: list[int] = attrs.field(init=False, factory=list)
    _page_ids: list[PageId] = attrs.field(init=False, factory=list)

    @property
    def prefill_tokens(self) -> int:
        return sum(self.counts) - self.decode_rows

    @property
    def attended_tokens(self) -> int:
        """Tokens that the chunks of prompts attend to, summed over the tokens of each."""
        chunks = slice(self.decode_rows, None)
        return sum(map(attended_tokens, self.starts[chunks], self.counts[chunks]))

    def open(self, slot: SlotId, sequence: Sequence) -> None:
        admit = sequence.admit
        self.started.append(sequence)
        self.opened.append(
            OpenSlot(
                slot=slot,
                choice=sequence.choice,
                prompt_ids=admit.prompt_ids,
                output_ids=sequence.tokens[sequence.prompt_tokens :].tobytes(),
                sampling=admit.sampling,
            )
        )

    def set_pages(self, slot: SlotId, offset: int, pages: list[PageId]) -> None:
        """Appends to the slot's page table where `offset` is its length, else replaces."""
        self._page_slots.append(slot)
        self._page_counts.append(len(pages))
        self._page_offsets.append(offset)
        self._page_ids.extend(pages)

    def add_row(self, slot: SlotId, sequence: Sequence, count: int) -> None:
        """The next `count` tokens of a choice; a token is sampled behind the row unless it ends within the prefill."""
        start = sequence.planned_tokens
        end = start + count
        sequence.planned_tokens = end
        sequence.last_step = self.step
        self.rows.append(sequence)
        self.counts.append(count)
        self.slots.append(slot)
        self.starts.append(start)
        samples = end >= sequence.prefill_tokens
        self._samples.append(samples)
        if samples:
            self.sampled.append(sequence)

    def message(self) -> ExecuteStep:
        return ExecuteStep(
            step=self.step,
            retired=pack_i32(self.retired),
            opened=tuple(self.opened),
            page_slots=pack_i32(self._page_slots),
            page_counts=pack_i32(self._page_counts),
            page_offsets=pack_i32(self._page_offsets),
            page_ids=pack_i32(self._page_ids),
            slots=pack_i32(self.slots),
            starts=pack_i32(self.starts),
            counts=pack_i32(self.counts),
            samples=pack_i8(self._samples),
        )
