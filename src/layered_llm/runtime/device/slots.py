"""The slots' ledger: how many tokens each running choice has, which pages, and whether a step fits that.

Must not know: token values, tensors, models, sampling, what a page holds.

Shared by all devices, also where the values are in a device's memory. Everything is a column or a matrix of integers, so that
the work per step grows with its rows. Invariants of an open slot: computed tokens ≤ known tokens ≤ context + 1, and its page
table covers its computed tokens. A step that contradicts the state is our own fault: InvariantViolated, and the process ends.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.columns import rows
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep, OpenSlot
from layered_llm.runtime.device.step_inputs import DecodeRun, Int32s, Int64s, StepInputs, int32s

SURPLUS_TOKENS: Final = 1
"""With two steps in flight, a choice that ended in the first still samples in the second."""


class SlotLedger:
    """Counts and page tables of all slots."""

    def __init__(self, limits: RuntimeLimits) -> None:
        self._limits = limits
        width = limits.context_tokens + SURPLUS_TOKENS
        self._pages: Int32s = np.zeros((limits.slots, -(-width // limits.page_size_tokens)), np.int32)
        self._open_slots: set[int] = set()
        self._is_open: NDArray[np.bool_] = np.zeros(limits.slots, np.bool_)
        self._known_tokens: Int64s = np.zeros(limits.slots, np.int64)
        self._computed_tokens: Int64s = np.zeros(limits.slots, np.int64)
        self._start_limits: Int64s = np.zeros(limits.slots, np.int64)
        self._page_counts: Int64s = np.zeros(limits.slots, np.int64)
        self._run: DecodeRun | None = None
        """Of the last step, if it only decoded and no slot was opened or retired since."""

    def apply(self, step: ExecuteStep) -> StepInputs:
        """Applies the step's deltas in their order, then checks its rows and counts their tokens as computed.

        The token ids are the caller's to fill in.
        """
        self._apply_deltas(step)
        run = self._run
        inputs = self._advanced(run) if run is not None and run.goes_on(step) else self._checked_inputs(step)
        self._computed_tokens[inputs.slots] = inputs.ends
        self._start_limits[inputs.slots] = inputs.ends
        return inputs

    def sampled(self, inputs: StepInputs, counts: Int64s | None = None) -> None:
        """Each sampling row of the last step has `counts` tokens more, or one more. The last one of a slot is not computed."""
        slots = inputs.sampled_slots
        if counts is None:
            self._known_tokens[slots] = inputs.sampled_ends + 1
            if self._run is not None:
                self._run.has_sampled = True
            return
        self._known_tokens[slots] += counts
        self._computed_tokens[slots] = self._start_limits[slots] = self._known_tokens[slots] - 1
        self._run = None

    def known_tokens(self, slot: int) -> int:
        """Prompt and output so far."""
        return int(self._known_tokens[slot])

    def _apply_deltas(self, step: ExecuteStep) -> None:
        if step.retired or step.opened:
            self._run = None
        for slot in int32s(step.retired).tolist():
            self._retire(slot)
        for opening in step.opened:
            self._open(opening)
        if step.page_slots or step.page_ids:
            self._apply_page_deltas(step)
            if self._run is not None:
                self._run.steps_in_pages = 0

    def _advanced(self, run: DecodeRun) -> StepInputs:
        """The next rows of a run. All that was true of the last ones is, but where they come to other pages, or to the end."""
        leaves_pages, inputs = run.steps_in_pages <= 0, run.inputs
        run.advance()
        if leaves_pages:
            room = np.minimum(self._page_counts[inputs.slots] * self._limits.page_size_tokens, self._limits.context_tokens)
            if (inputs.ends > room).any():
                self._check_rows(inputs.slots, inputs.starts, inputs.ends, np.ones(inputs.slots.size, np.bool_))
            inputs.cells[:], run.steps_in_pages = self._placed(inputs.slots, inputs.starts)
        return inputs

    def _placed(self, slots: Int64s, positions: Int64s) -> tuple[Int64s, int]:
        """The cells of tokens, and how many more fit after each of them, in its page and in the context."""
        page_size = np.int64(self._limits.page_size_tokens)
        pages, offsets = np.divmod(positions, page_size)
        page_left = int(page_size - 1 - offsets.max(initial=0))
        context_left = self._limits.context_tokens - 1 - int(positions.max(initial=0))
        return self._pages[slots, pages] * page_size + offsets, min(page_left, context_left)

    def _retire(self, slot: int) -> None:
        if slot not in self._open_slots:
            raise InvariantViolated(f"slot {slot} is retired but not open")
        self._open_slots.remove(slot)
        self._is_open[slot] = False

    def _open(self, opening: OpenSlot) -> None:
        slot = int(opening.slot)
        if slot in self._open_slots or not 0 <= slot < self._limits.slots:
            raise InvariantViolated(f"slot {slot} is opened but already open or out of range")
        prompt, output = rows("i", opening.prompt_ids), rows("i", opening.output_ids)
        if not prompt or prompt + output > self._limits.context_tokens:
            raise InvariantViolated(f"slot {slot} is opened with {prompt} prompt and {output} output tokens")
        self._open_slots.add(slot)
        self._is_open[slot] = True
        self._known_tokens[slot] = prompt + output
        self._computed_tokens[slot] = 0
        self._start_limits[slot] = prompt + output - 1
        self._page_counts[slot] = 0
        self._pages[slot] = 0

    def _apply_page_deltas(self, step: ExecuteStep) -> None:
        if any(step.page_groups):
            raise InvariantViolated(f"pages of groups {list(step.page_groups)} are given, the tables are of group 0 alone")
        counts = int32s(step.page_counts)
        page_ids = int32s(step.page_ids)
        if (counts < 0).any() or int(counts.sum()) != page_ids.size:
            raise InvariantViolated(f"page deltas count {counts.tolist()} ids but carry {page_ids.size}")
        if page_ids.size and not (page_ids.min() >= 0 and page_ids.max() < self._limits.pages):
            raise InvariantViolated(f"a page id is outside 0 … {self._limits.pages - 1}: {page_ids.tolist()}")
        taken = 0
        deltas = zip(int32s(step.page_slots).tolist(), counts.tolist(), int32s(step.page_offsets).tolist(), strict=True)
        for slot, count, offset in deltas:
            self._set_pages(slot, offset, page_ids[taken : taken + count])
            taken += count

    def _set_pages(self, slot: int, offset: int, page_ids: Int32s) -> None:
        if slot not in self._open_slots:
            raise InvariantViolated(f"pages are given to slot {slot}, which is not open")
        length, end = int(self._page_counts[slot]), offset + page_ids.size
        if not 0 <= offset <= length or end > self._pages.shape[1]:
            raise InvariantViolated(f"slot {slot}: pages {offset} … {end - 1} do not fit a table of {length}")
        self._pages[slot, offset:end] = page_ids
        if offset < length:
            replaced_tokens = end * self._limits.page_size_tokens
            self._start_limits[slot] = max(int(self._start_limits[slot]), replaced_tokens)
        self._page_counts[slot] = max(length, end)

    def _checked_inputs(self, step: ExecuteStep) -> StepInputs:
        slots, starts = int32s(step.slots).astype(np.int64), int32s(step.starts).astype(np.int64)
        counts, samples = int32s(step.counts).astype(np.int64), np.frombuffer(step.samples, np.int8)
        self._check_slots(slots)
        starts, counts = self._from_cursors(slots, starts, counts)
        ends, last_tokens = starts + counts, np.cumsum(counts) - 1
        self._check_rows(slots, starts, ends, samples != 0)
        token_slots, positions = _flat(slots, starts, counts)
        cells, steps_in_pages = self._placed(token_slots, positions)
        sampled = np.flatnonzero(samples)
        all_sample = sampled.size == slots.size
        inputs = StepInputs(
            slots=slots,
            starts=starts,
            counts=counts,
            ends=ends,
            sampled=sampled,
            sampled_slots=slots if all_sample else slots[sampled],
            sampled_ends=ends if all_sample else ends[sampled],
            logit_places=last_tokens[sampled],
            token_ids=np.empty(positions.size, np.int64),
            positions=positions,
            cells=cells,
            page_tables=self._pages,
            is_decode=all_sample and 0 < slots.size == positions.size,
        )
        self._run = DecodeRun.begin(inputs, steps_in_pages) if inputs.is_decode else None
        return inputs

    def _from_cursors(self, slots: Int64s, starts: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
        """Starts and counts of rows of which some go on: with the slot's last token, as one token is what it can compute."""
        goes_on = starts == GO_ON
        if not goes_on.any():
            return starts, counts
        at = self._known_tokens[slots] - 1
        room = np.minimum(self._page_counts[slots] * self._limits.page_size_tokens, self._limits.context_tokens)
        faults = (
            ("goes on before its prefill is complete", at != self._computed_tokens[slots]),
            ("goes on for more tokens than the device yields", (counts < 1) | (counts > self._limits.decode_tokens)),
            ("goes on beyond its pages or the context", at + counts > room),
        )
        for fault, is_faulty in faults:
            if (goes_on & is_faulty).any():
                raise InvariantViolated(self._describe(fault, int((goes_on & is_faulty).argmax()), slots, at, at + counts))
        return np.where(goes_on, at, starts), np.where(goes_on, 1, counts)

    def _check_slots(self, slots: Int64s) -> None:
        if slots.size and not (slots.min() >= 0 and slots.max() < self._limits.slots and self._is_open[slots].all()):
            raise InvariantViolated(f"a row names a slot that is not open: {slots.tolist()}")
        if len(set(slots.tolist())) != slots.size:
            raise InvariantViolated(f"a slot has two rows in one step: {slots.tolist()}")

    def _check_rows(self, slots: Int64s, starts: Int64s, ends: Int64s, samples: NDArray[np.bool_]) -> None:
        known = self._known_tokens[slots]
        faults = (
            ("has no tokens", ends <= starts),
            ("does not start where its computed tokens end", self._is_gap(slots, starts)),
            ("goes beyond its known tokens", ends > known),
            ("goes beyond the context", ends > self._limits.context_tokens),
            ("goes beyond its page table", ends > self._page_counts[slots] * self._limits.page_size_tokens),
            ("samples before its last known token", samples & (ends != known)),
        )
        for fault, is_faulty in faults:
            if is_faulty.any():
                raise InvariantViolated(self._describe(fault, int(is_faulty.argmax()), slots, starts, ends))

    def _is_gap(self, slots: Int64s, starts: Int64s) -> NDArray[np.bool_]:
        """A row continues its slot; the first one, and one after replaced pages, may skip what the pages already hold."""
        return (starts < self._computed_tokens[slots]) | (starts > self._start_limits[slots])

    def _describe(self, fault: str, row: int, slots: Int64s, starts: Int64s, ends: Int64s) -> str:
        slot = int(slots[row])
        return (
            f"the row of slot {slot}, tokens {starts[row]} … {ends[row] - 1}, {fault}: {self._known_tokens[slot]} tokens are "
            f"known, {self._computed_tokens[slot]} computed, {self._page_counts[slot]} pages of "
            f"{self._limits.page_size_tokens} held"
        )


def _flat(slots: Int64s, starts: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Slot and position of each token of the rows."""
    if counts.max(initial=1) <= 1:
        return slots, starts
    firsts = np.cumsum(counts) - counts
    return np.repeat(slots, counts), np.arange(int(counts.sum())) + np.repeat(starts - firsts, counts)
