"""One step from its planning to its acknowledgement.

Must not know: why a row is in the step, budgets, credit, when the step runs, how it is shown.

Invariant: what the runtime samples comes back in the order of `sampled`. A row that decodes is planned with the most tokens
that it may yield; what it does not yield is taken back from its choice's planned tokens when the step is answered.
"""

import enum

import attrs

from layered_llm.domain.columns import pack_i8, pack_i32, rows, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import PageId, RequestId, SlotId, StepId
from layered_llm.domain.messages.logprobs import PromptLogprobs
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep, OpenSlot, StepCompleted
from layered_llm.scheduling.budget import attended_tokens
from layered_llm.scheduling.pages import PageStore
from layered_llm.scheduling.sequences import Phase, Sequence


@attrs.frozen
class Idle:
    """Nothing to send: no work, no credit, or as many steps in flight as may be."""


@enum.unique
class Hold(enum.Enum):
    """Why no more choices were started for a step."""

    NOBODY_WAITS = enum.auto()
    NO_SLOT = enum.auto()
    """As many choices run as may, or the slots that are free are still named by a step in flight."""
    NO_PAGES = enum.auto()
    """What is known of the next choice does not fit beside those that run."""
    NOBODY_READY = enum.auto()
    """Who waits has a text worker that lags behind, or another choice of its request computes their prompt."""


@attrs.frozen(kw_only=True)
class TracedRow:
    """The tokens of one choice that the step computes."""

    slot: SlotId
    request: RequestId
    choice: int
    start: int
    """Tokens of the choice that are in front of these."""
    tokens: int
    is_prefill: bool


@attrs.frozen(kw_only=True)
class StepTrace:
    """What one step is made of, and the choices and pages at the moment when it was planned."""

    step: StepId
    rows: tuple[TracedRow, ...]
    retired: tuple[SlotId, ...]
    preempted: tuple[tuple[RequestId, int], ...]
    """Requests and their choices."""
    running: int
    """Choices."""
    waiting: int
    pages_free: int
    pages_cached: int
    """Held by the prefix tree alone."""
    pages_used: int
    """All others, those that wait for a step in flight with them."""
    hold: Hold

    @property
    def decode_rows(self) -> int:
        return sum(not row.is_prefill for row in self.rows)

    @property
    def prefill_tokens(self) -> int:
        return sum(row.tokens for row in self.rows if row.is_prefill)


@attrs.frozen
class NextStep:
    """A step to send, and what is known of it when it is planned."""

    message: ExecuteStep
    tokens: int
    """The most that it computes."""
    waited_us: tuple[int, ...]
    """How long each request waited of which this is the first step."""
    trace: StepTrace | None
    """Only from a scheduler that was asked for traces."""


@attrs.define(eq=False)
class PlannedStep:
    """Rows of a step, filled while it is planned and kept until it is acknowledged."""

    step: StepId
    _decode_tokens: int
    """Most tokens that a row that decodes may yield."""
    retired: list[SlotId] = attrs.field(init=False, factory=list)
    started: list[Sequence] = attrs.field(init=False, factory=list)
    """Choices whose slot the step opens."""
    preempted: list[Sequence] = attrs.field(init=False, factory=list)
    """Choices that gave their pages up for this step."""
    opened: list[OpenSlot] = attrs.field(init=False, factory=list)
    rows: list[Sequence] = attrs.field(init=False, factory=list)
    slots: list[SlotId] = attrs.field(init=False, factory=list)
    starts: list[int] = attrs.field(init=False, factory=list)
    """Where each row starts; GO_ON for those that decode."""
    counts: list[int] = attrs.field(init=False, factory=list)
    sampled: list[Sequence] = attrs.field(init=False, factory=list)
    decode_rows: int = attrs.field(init=False, default=0)
    """Rows that compute the newest token of an output; the other rows are chunks of prompts."""
    prefill_tokens: int = attrs.field(init=False, default=0)
    """Of all chunks together."""
    attended_tokens: int = attrs.field(init=False, default=0)
    """Tokens that the chunks attend to, summed over the tokens of each."""
    open_slots: int = attrs.field(init=False, default=0)
    """Slots that hold state in the runtime after this step."""
    yields: list[int] | None = attrs.field(init=False, default=None)
    """Tokens of each of `sampled`, once the step is answered; None where it is one each."""
    _samples: list[int] = attrs.field(init=False, factory=list)
    _page_slots: list[SlotId] = attrs.field(init=False, factory=list)
    _page_counts: list[int] = attrs.field(init=False, factory=list)
    _page_offsets: list[int] = attrs.field(init=False, factory=list)
    _page_ids: list[PageId] = attrs.field(init=False, factory=list)

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

    def add_decodes(self, slots: list[SlotId], sequences: list[Sequence], counts: list[int]) -> None:
        """The next tokens of each choice, `counts` of them at most. Comes before all chunks."""
        self.decode_rows = len(sequences)
        self.rows += sequences
        self.sampled += sequences
        self.slots += slots
        self.starts += [GO_ON] * len(sequences)
        self.counts += counts
        self._samples += [1] * len(sequences)
        for one, count in zip(sequences, counts, strict=True):
            one.planned_tokens += count
            one.last_step = self.step

    def add_chunk(self, slot: SlotId, sequence: Sequence, count: int) -> None:
        """The next `count` tokens of a choice; a token is sampled after the last chunk of its prefill."""
        start = sequence.planned_tokens
        end = start + count
        sequence.planned_tokens = end
        self.prefill_tokens += count
        self.attended_tokens += attended_tokens(start, count)
        sequence.last_step = self.step
        self.rows.append(sequence)
        self.counts.append(count)
        self.slots.append(slot)
        self.starts.append(start)
        samples = end == sequence.prefill_tokens
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

    def take_yields(self, result: StepCompleted) -> None:
        """Raises InvariantViolated where rows that were not planned have a result, or a row has more tokens than planned."""
        counts = unpack_i32(result.token_counts) if result.token_counts else None
        known = rows("i", result.token_ids) if counts is None else len(counts)
        if known != len(self.sampled):
            raise InvariantViolated(f"step {self.step} samples for {len(self.sampled)} choices, {known} have a result")
        if counts is not None:
            most = [*self.counts[: self.decode_rows], *[1] * (known - self.decode_rows)]
            if any(count > limit for count, limit in zip(counts, most, strict=True)):
                raise InvariantViolated(f"step {self.step} yields {counts.tolist()} tokens, planned are at most {most}")
        if counts is not None or self._decode_tokens > 1:
            self.yields = [1] * known if counts is None else counts.tolist()

    def unused(self) -> list[int]:
        """Of each row, the tokens that were planned and not yielded: so much less than planned is computed of its choice.

        The last token that is known of a choice is computed when the next one is sampled. So a row that ends a prefill and
        yields nothing leaves the prompt's last token to be computed once more.
        """
        yields = iter(self.yields or ())
        decodes = [count - next(yields) for count in self.counts[: self.decode_rows]]
        return decodes + [1 - next(yields) if samples else 0 for samples in self._samples[self.decode_rows :]]

    def yielding(self) -> list[Sequence]:
        """The choice of each token of the result, where it is not one each."""
        return [one for one, count in zip(self.sampled, self.yields or (), strict=True) for _ in range(count)]

    def count_computed(self) -> int:
        """Prompt tokens that no step before computed; decodes come first in a step and compute none. Counts each once."""
        new = 0
        chunks = slice(self.decode_rows, None)
        for sequence, start, count in zip(self.rows[chunks], self.starts[chunks], self.counts[chunks], strict=True):
            end = min(start + count, sequence.prompt_tokens)
            new += max(end - max(start, sequence.counted_tokens), 0)
            sequence.counted_tokens = max(end, sequence.counted_tokens)
        return new

    def keep_prompt_logprobs(self, columns: PromptLogprobs) -> None:
        """Adds what the runtime computed of prompts to the rows' choices; what comes for one that ended is dropped.

        One that was preempted meanwhile needs it if the step sampled its first token, and forgets it when it starts again.
        Raises InvariantViolated for too few or too many rows.
        """
        if columns.row_count != len(self.rows):
            raise InvariantViolated(f"step {self.step} has {len(self.rows)} rows, prompts of {columns.row_count} came")
        for sequence, of_row in zip(self.rows, columns, strict=True):
            if of_row is not None and sequence.phase is not Phase.ENDED:
                sequence.prompt_logprobs.append(of_row)

    def trace(self, *, running: int, waiting: int, pages: PageStore, hold: Hold) -> StepTrace:
        """To be taken when the step was just planned: decodes, then chunks of prompts. `running` and `waiting` are choices."""
        columns = zip(self.slots, self.rows, self.counts, strict=True)
        return StepTrace(
            step=self.step,
            rows=tuple(
                TracedRow(
                    slot=slot,
                    request=sequence.request,
                    choice=sequence.choice,
                    start=sequence.planned_tokens - count,
                    tokens=count,
                    is_prefill=index >= self.decode_rows,
                )
                for index, (slot, sequence, count) in enumerate(columns)
            ),
            retired=tuple(self.retired),
            preempted=tuple((one.request, one.choice) for one in self.preempted),
            running=running,
            waiting=waiting,
            pages_free=pages.free,
            pages_cached=pages.cached,
            pages_used=pages.total - pages.available,
            hold=hold,
        )
