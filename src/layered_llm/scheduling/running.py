"""The choices that run: their slots, their pages, and their rows in the next step (continuous batching, Yu et al., OSDI 2022).

Must not know: requests, text workers beyond their credit, token ids, why a choice ends.

Invariants: a running choice has one slot and, in pages owned and reserved, its worst case, so it can finish whatever comes
after it. A slot that is free was never opened, or its retirement is sent before or with the step that opens it again.
"""

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import SlotId, StepId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.scheduling.budget import decode_limit, share_chunks
from layered_llm.scheduling.pages import PageAllocator
from layered_llm.scheduling.plan import PlannedStep
from layered_llm.scheduling.pools import PoolCensus, QuarantinePool
from layered_llm.scheduling.sequences import NO_STEP, Phase, Sequence


class RunningChoices:
    """Starts choices, plans their rows, ends them."""

    def __init__(self, *, limits: RuntimeLimits, max_choices: int) -> None:
        self.pages = PageAllocator(pages=limits.pages, page_size_tokens=limits.page_size_tokens)
        self._slots = QuarantinePool([SlotId(slot) for slot in reversed(range(limits.slots))])
        self._max_choices = max_choices
        self._prefilling: dict[SlotId, Sequence] = {}
        """Oldest first."""
        self._decoding: dict[SlotId, Sequence] = {}
        """Whoever waited longest for its turn first."""
        self._retired: list[SlotId] = []
        """Slots whose end the runtime does not know yet."""
        self._open_slots = 0

    @property
    def count(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def slots_to_retire(self) -> int:
        return len(self._retired)

    @property
    def prefilling(self) -> tuple[Sequence, ...]:
        return tuple(self._prefilling.values())

    @property
    def decoding(self) -> tuple[Sequence, ...]:
        return tuple(self._decoding.values())

    def slots_census(self) -> PoolCensus[SlotId]:
        return self._slots.census()

    def has_room(self, worst_case_pages: int) -> bool:
        return self.count < self._max_choices and self._slots.free_count > 0 and self.pages.can_reserve(worst_case_pages)

    def start(self, sequence: Sequence) -> None:
        """Takes a choice in; the caller has asked `has_room`."""
        (slot,) = self._slots.take(1)
        self.pages.reserve(sequence.worst_case_pages)
        sequence.slot = slot
        sequence.phase = Phase.PREFILLING
        self._prefilling[slot] = sequence

    def end(self, sequence: Sequence) -> None:
        """Frees what the choice holds: at once, or with the acknowledgement of the last step that names it."""
        slot = sequence.slot
        if slot is None:
            raise InvariantViolated(f"choice {sequence.choice} of request {sequence.request} ends without running")
        del (self._prefilling if sequence.phase is Phase.PREFILLING else self._decoding)[slot]
        reserved = sequence.worst_case_pages - len(sequence.pages)
        self.pages.give_back(sequence.pages, reserved=reserved, last_step=sequence.last_step)
        self._slots.give_back((slot,), sequence.last_step)
        if sequence.last_step != NO_STEP:
            self._retired.append(slot)
        sequence.pages = []
        sequence.slot = None

    def plan(self, step: StepId, max_step_tokens: int) -> PlannedStep:
        """Empty when nothing is to be run; its retired slots are to be sent even then."""
        planned = PlannedStep(step, self._retired)
        self._retired = []
        prompts = [(slot, one) for slot, one in self._prefilling.items() if one.worker.has_credit]
        self._plan_decodes(planned, decode_limit(max_step_tokens, is_prefilling=bool(prompts)))
        if prompts:
            self._plan_chunks(planned, prompts, max_step_tokens - planned.decode_rows)
        self._open_slots += len(planned.opened) - len(planned.retired)
        planned.open_slots = self._open_slots
        return planned

    def acknowledge(self, step: StepId) -> None:
        self.pages.acknowledge(step)
        self._slots.acknowledge(step)

    def _plan_decodes(self, planned: PlannedStep, limit: int) -> None:
        ready = [
            (slot, sequence)
            for slot, sequence in self._decoding.items()
            if sequence.worker.has_credit and sequence.planned_tokens < sequence.plan_limit_tokens
        ]
        turn = ready[:limit]
        for slot, sequence in turn:
            self._plan_row(planned, slot, sequence, 1)
        planned.decode_rows = len(turn)
        if len(turn) < len(ready):
            for slot, sequence in turn:
                del self._decoding[slot]
                self._decoding[slot] = sequence

    def _plan_chunks(self, planned: PlannedStep, prompts: list[tuple[SlotId, Sequence]], budget_tokens: int) -> None:
        remaining = [sequence.prompt_tokens - sequence.planned_tokens for _, sequence in prompts]
        for (slot, sequence), count in zip(prompts, share_chunks(remaining, budget_tokens), strict=True):
            if not count:
                continue
            if sequence.last_step == NO_STEP:
                planned.open(slot, sequence)
            self._plan_row(planned, slot, sequence, count)
            if sequence.planned_tokens == sequence.prompt_tokens:
                sequence.phase = Phase.DECODING
                self._decoding[slot] = self._prefilling.pop(slot)

    def _plan_row(self, planned: PlannedStep, slot: SlotId, sequence: Sequence, count: int) -> None:
        owned = len(sequence.pages)
        if owned * self.pages.page_size_tokens < sequence.planned_tokens + count:
            new_pages = self.pages.allocate(self.pages.pages_for(sequence.planned_tokens + count) - owned)
            planned.append_pages(slot, owned, new_pages)
            sequence.pages += new_pages
        planned.add_row(slot, sequence, count)
