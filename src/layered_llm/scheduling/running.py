"""The choices that run: their slots, their pages, and their rows in the next step (continuous batching, Yu et al., OSDI 2022).

Must not know: requests, text workers beyond their credit, which token was sampled, why a choice ends.

Nothing is reserved for what a choice may still become: one that needs a page when there is none takes it from the youngest
(preemption by recompute, vLLM, Kwon et al., SOSP 2023), never from an older one. So the oldest choice always moves.

Invariants: a running choice has one slot and the pages of its planned tokens. A slot that is free was never opened, or its
retirement is sent before or with the step that opens it again. The runtime's page tables name no page that a later step could
be given: a replaced page is sent with the next step, before anybody can take the old one.
"""

from collections.abc import Container, Iterable
from operator import attrgetter

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import PageId, SlotId, StepId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.scheduling.budget import Pace, attended_tokens, decode_limit, share_chunks
from layered_llm.scheduling.pages import NO_STEP, PageStore, PoolCensus, QuarantinePool
from layered_llm.scheduling.plan import PlannedStep
from layered_llm.scheduling.policy import SchedulingPolicy
from layered_llm.scheduling.sequences import Phase, Sequence

Chunk = tuple[Sequence, int]
"""A choice and how many tokens of its prefill are to be computed."""
Work = tuple[list[Sequence], list[Chunk]]
"""What a step computes: choices that decode a token each, and chunks."""


class RunningChoices:
    """Starts choices, plans their rows, shares their pages, preempts and ends them."""

    def __init__(self, *, limits: RuntimeLimits, policy: SchedulingPolicy) -> None:
        if limits.page_groups != 1:
            raise InvariantViolated(f"the runtime has {limits.page_groups} page groups, pages of one are planned")
        self.pages = PageStore(pages=limits.pages, page_size_tokens=limits.page_size_tokens, keeps_prefixes=policy.prefix_cache)
        self._slots = QuarantinePool([SlotId(slot) for slot in reversed(range(limits.slots))])
        self._max_choices = policy.max_running_choices
        self._max_step_tokens = policy.max_step_tokens
        self.decode_tokens = limits.decode_tokens
        """Most tokens that a row that decodes may yield."""
        self._pace = None if policy.max_token_gap_us is None else Pace(policy.max_token_gap_us)
        self._prefilling: dict[SlotId, Sequence] = {}
        """Oldest first, but for those that were preempted meanwhile."""
        self._decoding: dict[SlotId, Sequence] = {}
        """Whoever waited longest for its turn first."""
        self._retired: list[SlotId] = []
        """Slots whose end the runtime does not know yet."""
        self._replaced: dict[SlotId, list[tuple[int, list[PageId]]]] = {}
        """Pages, with their offset in the slot's table, that the runtime does not know yet to stand for duplicates."""
        self._open_slots = 0

    @property
    def count(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def slots_to_retire(self) -> int:
        return len(self._retired)

    @property
    def slots_with_replaced_pages(self) -> int:
        return len(self._replaced)

    @property
    def prefilling(self) -> tuple[Sequence, ...]:
        return tuple(self._prefilling.values())

    @property
    def decoding(self) -> tuple[Sequence, ...]:
        return tuple(self._decoding.values())

    @property
    def pages_promised(self) -> int:
        """Pages that choices were started for and that their prefill has not taken yet."""
        return sum(self.pages.pages_for(one.prefill_tokens) - len(one.pages) for one in self._prefilling.values())

    @property
    def has_slot(self) -> bool:
        return self.count < self._max_choices and bool(self._slots.free)

    def slots_census(self) -> PoolCensus[SlotId]:
        return self._slots.census()

    def try_start(self, sequence: Sequence) -> bool:
        """Takes a choice in where what is known of it fits; the caller has asked `has_slot`. False has changed nothing.

        What each running choice may need next is left, so that nobody who starts is preempted for the next token of another.
        """
        if sequence.last_step > self.pages.acknowledged:
            raise InvariantViolated(
                f"request {sequence.request} starts again while step {sequence.last_step} may sample for it"
            )
        key = sequence.tokens if sequence.reads_cache else sequence.tokens[:1]
        prefix = self.pages.find(sequence.cache_root, key.tobytes())
        missing = self.pages.pages_for(len(sequence.tokens)) - len(prefix.pages)
        left = self.count * self.pages.pages_for(self.decode_tokens)
        if missing + self.pages_promised + left > self.pages.available:
            self.pages.unlock(prefix.place, len(prefix.pages), NO_STEP)
            return False
        (slot,) = self._slots.take(1)
        found = len(prefix.pages) * self.pages.page_size_tokens
        sequence.slot, sequence.phase, sequence.last_step = slot, Phase.PREFILLING, NO_STEP
        sequence.place, sequence.pages, sequence.shared_pages = prefix.place, prefix.pages, len(prefix.pages)
        sequence.prefill_tokens = len(sequence.tokens)
        sequence.planned_tokens = sequence.computed_tokens = found
        sequence.paged_tokens = 0
        sequence.prompt_logprobs = []
        if sequence.cached_tokens is None:
            sequence.cached_tokens = found
        self._prefilling[slot] = sequence
        return True

    def end(self, sequence: Sequence) -> None:
        """Frees what the choice holds: at once, or with the acknowledgement of the last step that names it."""
        slot, place, last_step = sequence.slot, sequence.place, sequence.last_step
        if slot is None or place is None:
            raise InvariantViolated(f"choice {sequence.choice} of request {sequence.request} ends without running")
        del (self._prefilling if sequence.phase is Phase.PREFILLING else self._decoding)[slot]
        self._replaced.pop(slot, None)
        self.pages.give_back(sequence.pages[sequence.shared_pages :], last_step)
        self.pages.unlock(place, sequence.shared_pages, last_step)
        self._slots.give_back((slot,), last_step)
        if last_step != NO_STEP:
            self._retired.append(slot)
        sequence.slot, sequence.place, sequence.pages, sequence.shared_pages = None, None, [], 0

    def plan(self, step: StepId) -> PlannedStep:
        """Empty when nothing is to be run; its retired slots are to be sent, its preempted choices to be queued even then."""
        planned = PlannedStep(step, self.decode_tokens)
        decodes, chunks = self._work_with_pages(planned)
        if self._replaced and (decodes or chunks or self._retired):
            self._plan_replacements(planned)
        if len(decodes) < len(self._decoding):
            self._give_up_turn(decodes)
        self._plan_decodes(planned, decodes)
        for sequence, count in chunks:
            self._plan_chunk(planned, sequence, count)
        planned.retired, self._retired = self._retired, []
        self._open_slots += len(planned.opened) - len(planned.retired)
        planned.open_slots = self._open_slots
        return planned

    def acknowledge(self, planned: PlannedStep, *, device_us: int, failed: Container[Sequence] = ()) -> None:
        """The step is done: what it computed may be shared, unless it failed, and what waited for it is free."""
        if self._pace is not None:
            self._pace.measured(
                prefill_tokens=planned.prefill_tokens,
                attended_tokens=planned.attended_tokens,
                decode_rows=planned.decode_rows,
                step_us=device_us,
            )
        self.pages.acknowledge(planned.step)
        self._slots.acknowledge(planned.step)
        keeps_prefixes, size = self.pages.keeps_prefixes, self.pages.page_size_tokens
        computed = planned.counts if planned.yields is None else self._take_unused_back(planned)
        for sequence, slot, count in zip(planned.rows, planned.slots, computed, strict=True):
            if sequence.slot != slot:
                continue
            sequence.computed_tokens += count
            if keeps_prefixes and sequence.computed_tokens >= (sequence.shared_pages + 1) * size and sequence not in failed:
                self._share(sequence)

    def _take_unused_back(self, planned: PlannedStep) -> list[int]:
        """What each row computed for good. Pages that were taken for more are of use to the next step."""
        unused = planned.unused()
        for sequence, slot, count in zip(planned.rows, planned.slots, unused, strict=True):
            if sequence.slot == slot and count:
                sequence.paged_tokens = max(sequence.paged_tokens, sequence.planned_tokens)
                sequence.planned_tokens -= count
        return [count - less for count, less in zip(planned.counts, unused, strict=True)]

    def distrust(self, sequence: Sequence) -> None:
        """Nobody finds a page any more that the choice computed or read: one of them may be what spoilt its numbers."""
        first_page = sequence.tokens[: self.pages.page_size_tokens]
        self.pages.forget(sequence.cache_root, first_page.tobytes())

    def _share(self, sequence: Sequence) -> None:
        """Gives full pages to the prefix tree. Where another choice was faster its pages replace the duplicates here."""
        place, slot, size = sequence.place, sequence.slot, self.pages.page_size_tokens
        if place is None or slot is None:
            raise InvariantViolated(f"choice {sequence.choice} of request {sequence.request} shares pages without running")
        # Tokens that came with this step are not known here yet.
        first, last = sequence.shared_pages, min(sequence.computed_tokens, len(sequence.tokens)) // size
        if first == last:
            return
        own = sequence.pages[first:last]
        prefix = self.pages.keep(place, sequence.tokens[first * size : last * size].tobytes(), own)
        sequence.place, sequence.shared_pages = prefix.place, last
        if own != prefix.pages:
            duplicates = [mine for mine, kept in zip(own, prefix.pages, strict=True) if mine != kept]
            sequence.pages[first:last] = prefix.pages
            self._replaced.setdefault(slot, []).append((first, prefix.pages[: len(duplicates)]))
            self.pages.give_back(duplicates, sequence.last_step)

    def _work_with_pages(self, planned: PlannedStep) -> Work:
        """What to compute next. Whoever cannot have its pages now leaves its share of the budget to others."""
        stalled: set[Sequence] = set()
        work = self._work(stalled)
        while self._missing_pages(*work) > self.pages.available:
            stalled |= self._make_room(planned, work)
            work = self._work(stalled)
        return work

    def _work(self, stalled: Container[Sequence]) -> Work:
        prompts = [one for one in self._prefilling.values() if one.worker.has_credit and one not in stalled]
        prompts.sort(key=attrgetter("arrival"))
        decodes = [
            one
            for one in self._decoding.values()
            if one.worker.has_credit and one.planned_tokens < one.plan_limit_tokens and one not in stalled
        ]
        limit = decode_limit(self._max_step_tokens, is_prefilling=bool(prompts)) // self.decode_tokens
        del decodes[max(limit, 1) :]
        if not prompts:
            return decodes, []
        chunks = zip(prompts, self._chunks(prompts, len(decodes)), strict=True)
        return decodes, [chunk for chunk in chunks if chunk[1]]

    def _chunks(self, prompts: list[Sequence], decode_rows: int) -> list[int]:
        """Tokens that each of `prompts` computes in the next step."""
        left = [one.prefill_tokens - one.planned_tokens for one in prompts]
        budget = max(self._max_step_tokens - decode_rows * self.decode_tokens, 0)
        if self._pace is None or not decode_rows:
            return share_chunks(left, budget)

        def attended(limit: int) -> int:
            chunks = zip(prompts, share_chunks(left, limit), strict=True)
            return sum(attended_tokens(one.planned_tokens, count) for one, count in chunks)

        return share_chunks(left, min(budget, self._pace.prefill_limit(decode_rows=decode_rows, attended=attended)))

    def _give_up_turn(self, turn: Iterable[Sequence]) -> None:
        for sequence in turn:
            if (slot := sequence.slot) is not None:
                self._decoding[slot] = self._decoding.pop(slot)

    def _missing_pages(self, decodes: Iterable[Sequence], chunks: Iterable[Chunk]) -> int:
        size = self.pages.page_size_tokens
        if self.decode_tokens == 1:
            missing = sum([one.planned_tokens >= len(one.pages) * size for one in decodes])
        else:
            missing = sum([self._missing_of(one, self._decode_count(one)) for one in decodes])
        for sequence, count in chunks:
            missing += self._missing_of(sequence, count)
        return missing

    def _missing_of(self, sequence: Sequence, count: int) -> int:
        """Pages that its next `count` tokens need beyond those that it has."""
        return max(self.pages.pages_for(sequence.planned_tokens + count) - len(sequence.pages), 0)

    def _decode_count(self, sequence: Sequence) -> int:
        """Most tokens that its next row may yield."""
        return min(self.decode_tokens, sequence.plan_limit_tokens - sequence.planned_tokens)

    def _make_room(self, planned: PlannedStep, work: Work) -> set[Sequence]:
        """Gets pages for the work, oldest first, at the cost of the youngest; says who is stalled for want of them.

        After one that is stalled `spare` is below zero: a page that somebody younger took would have to be taken back.
        """
        stalled: set[Sequence] = set()
        spare = self.pages.available
        decodes, chunks = work
        for sequence, count in sorted(
            [*((one, self._decode_count(one)) for one in decodes), *chunks], key=lambda item: item[0].arrival
        ):
            missing = self._missing_of(sequence, count)
            if sequence.slot is None or not missing:
                continue
            if not stalled:
                spare += self._preempt_for(planned, sequence, missing - spare)
            if missing > spare:
                stalled.add(sequence)
            spare -= missing
        return stalled

    def _preempt_for(self, planned: PlannedStep, sequence: Sequence, shortfall: int) -> int:
        """Preempts choices younger than `sequence`, as many as it takes; how many pages became available by that.

        Pages that come back with the steps in flight count: it is better to be stalled for a step than to compute again.
        """
        before = self.pages.available
        while self.pages.available - before + self.pages.returning < shortfall:
            youngest = max(self._running(), key=attrgetter("arrival"))
            if youngest is sequence:
                break
            self._preempt(planned, youngest)
        return self.pages.available - before

    def _preempt(self, planned: PlannedStep, sequence: Sequence) -> None:
        """What the choice computed stays in the prefix tree while there is room; it starts again with its output known.

        Its output is known then: the step that retires its slot is planned now, and the next one only when a step before it,
        which may sample for the choice, is acknowledged, as two are in flight at most.
        """
        self.end(sequence)
        sequence.phase = Phase.WAITING
        planned.preempted.append(sequence)

    def _running(self) -> Iterable[Sequence]:
        yield from self._prefilling.values()
        yield from self._decoding.values()

    def _plan_replacements(self, planned: PlannedStep) -> None:
        """Comes before the rows, since these may take the duplicates' pages."""
        for slot, replacements in self._replaced.items():
            for offset, pages in replacements:
                planned.set_pages(slot, offset, pages)
        self._replaced = {}

    def _plan_decodes(self, planned: PlannedStep, decodes: list[Sequence]) -> None:
        """All of them at once, as nearly every row of a step is one of them."""
        slots = list(map(attrgetter("slot"), decodes))
        if None in slots:
            raise InvariantViolated(f"{len(decodes)} choices are to decode, {slots.count(None)} of them have no slot")
        size = self.pages.page_size_tokens
        counts = [1] * len(decodes) if self.decode_tokens == 1 else [self._decode_count(one) for one in decodes]
        for sequence, slot, count in zip(decodes, slots, counts, strict=True):
            if sequence.planned_tokens + count > len(sequence.pages) * size:
                pages = self.pages.take(self._missing_of(sequence, count))
                planned.set_pages(slot, len(sequence.pages), pages)
                sequence.pages += pages
        planned.add_decodes(slots, decodes, counts)

    def _plan_chunk(self, planned: PlannedStep, sequence: Sequence, count: int) -> None:
        slot = sequence.slot
        if slot is None:
            raise InvariantViolated(f"choice {sequence.choice} of request {sequence.request} is planned without a slot")
        known_pages = len(sequence.pages)
        sequence.pages += self.pages.take(self._missing_of(sequence, count))
        if sequence.last_step == NO_STEP:
            known_pages = 0
            planned.open(slot, sequence)
        if known_pages < len(sequence.pages):
            planned.set_pages(slot, known_pages, sequence.pages[known_pages:])
        planned.add_chunk(slot, sequence, count)
        if sequence.planned_tokens == sequence.prefill_tokens:
            sequence.phase = Phase.DECODING
            self._decoding[slot] = self._prefilling.pop(slot)
