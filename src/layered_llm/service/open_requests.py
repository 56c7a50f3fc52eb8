"""The open requests of one API process: what each waits for, what came for it, and whether leaving it owes an abort.

Must not know: sockets, event loops, HTTP. Time comes in as an argument.

A record is made by `open` and leaves the table in exactly one of four ways: rejected, ended, closed by its owner (which owes
the abort), or lost with the engine. What comes for a request that is not in the table is late: dropped and counted.
"""

import enum
from collections.abc import Callable, Iterable

import attrs

from layered_llm.domain.columns import rows, unpack_i8, unpack_i32, unpack_i64
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.messages.api_text import Abort, Accepted, Rejected, TextAnswer, TextEmitted
from layered_llm.domain.stream import ChoiceDelta, RequestEnded, StreamEvent, Usage
from layered_llm.service.delta_logprobs import prompt_logprobs, sampled_logprobs
from layered_llm.service.request_figures import RequestFigures, RequestTimes


@enum.unique
class Phase(enum.Enum):
    """Where a request stands, as its opener sees it."""

    SUBMITTED = enum.auto()
    ACCEPTED = enum.auto()
    REJECTED = enum.auto()
    ENDED = enum.auto()
    CLOSED = enum.auto()
    LOST = enum.auto()


@attrs.define(eq=False)
class RequestRecord:
    """One request of this process."""

    request: RequestId
    text: TextId
    times: RequestTimes
    open_choices: int
    """Choices without a finish reason yet."""
    phase: Phase = Phase.SUBMITTED
    verdict: Accepted | Rejected | None = None
    answer: TextAnswer | None = None
    """Of a question, which has neither choices nor, unless it is rejected, a verdict."""
    closed_as: AbortReason | None = None
    """Why, when its phase is CLOSED."""
    finish_reason: FinishReason = FinishReason.RUNNING
    """Of its choices that ended, that of the highest number."""
    error: str | None = None
    """Of the engine, when it ended by one."""
    usage: Usage | None = None
    """When it ended."""
    is_dropped: bool = False
    """Its owner has left; nothing is there to be fetched any more."""
    _count_end: Callable[[FinishReason], None] = attrs.field(kw_only=True)
    """Called once for each choice that the engine has ended: when its end is taken, or is never going to be."""
    _pending: dict[int, ChoiceDelta] = attrs.field(factory=dict)
    """At most one delta for each choice: what nobody fetched yet is merged, so a slow reader costs no more than its text."""
    _end: RequestEnded | None = None

    @property
    def has_events(self) -> bool:
        return bool(self._pending) or self._end is not None

    def take_events(self) -> tuple[StreamEvent, ...]:
        """Everything that came since the last call; the end, once, behind all deltas."""
        events: list[StreamEvent] = list(self._pending.values())
        self._count_ends()
        if self._end is not None:
            events.append(self._end)
            self._end = None
        return tuple(events)

    def drop_events(self) -> None:
        """Nobody takes them any more: who left before the end of a choice was told has aborted it."""
        self.is_dropped = True
        if any(delta.finish_reason is not FinishReason.RUNNING for delta in self._pending.values()):
            self.finish_reason = FinishReason.ABORT
        self._count_ends(FinishReason.ABORT)
        self._end = None

    def _count_ends(self, instead: FinishReason | None = None) -> None:
        for delta in self._pending.values():
            if delta.finish_reason is not FinishReason.RUNNING:
                self._count_end(instead or delta.finish_reason)
        self._pending.clear()

    def add_delta(self, delta: ChoiceDelta) -> None:
        waiting = self._pending.get(delta.choice)
        self._pending[delta.choice] = delta if waiting is None else _merged(waiting, delta)

    def finish(self, end: RequestEnded) -> None:
        self.phase, self._end, self.error, self.usage = Phase.ENDED, end, end.error, end.usage

    @property
    def is_over(self) -> bool:
        """Nothing more comes; what came may still be there to be fetched."""
        return self.phase not in (Phase.SUBMITTED, Phase.ACCEPTED)


def _merged(earlier: ChoiceDelta, later: ChoiceDelta) -> ChoiceDelta:
    if earlier.finish_reason is not FinishReason.RUNNING:
        raise InvariantViolated(f"choice {later.choice} goes on after it finished")
    return ChoiceDelta(
        choice=later.choice,
        text=earlier.text + later.text,
        token_ids=earlier.token_ids + later.token_ids,
        finish_reason=later.finish_reason,
        matched_stop=later.matched_stop,
        logprobs=earlier.logprobs + later.logprobs,
        prompt_logprobs=earlier.prompt_logprobs + later.prompt_logprobs,
    )


@attrs.define
class OpenRequests:
    """The table of records, and the counters of everything that left it."""

    _records: dict[RequestId, RequestRecord] = attrs.field(factory=dict)
    _accepted: int = 0
    _rejected: int = 0
    _lost: int = 0
    _late: int = 0
    _ended: int = 0
    _failed: int = 0
    _finished: dict[FinishReason, int] = attrs.field(factory=lambda: dict.fromkeys(FinishReason, 0))
    _aborts: dict[AbortReason, int] = attrs.field(factory=lambda: dict.fromkeys(AbortReason, 0))
    _figures: RequestFigures = attrs.field(factory=RequestFigures)

    def __len__(self) -> int:
        return len(self._records)

    def open(
        self, request: RequestId, text: TextId, now_s: float, *, choices: int = 1, max_tokens: int | None = None
    ) -> RequestRecord:
        if request in self._records:
            raise InvariantViolated(f"request {request} is open already")
        record = RequestRecord(request, text, RequestTimes(now_s, choices, max_tokens), choices, count_end=self._count_end)
        self._records[request] = record
        return record

    def close(self, request: RequestId, reason: AbortReason) -> Abort | None:
        """The owner leaves: the abort that has to go out, or None when the request ended, was rejected or lost before."""
        record = self._records.pop(request, None)
        if record is None:
            return None
        self._finish_rest(record, FinishReason.ABORT)
        record.phase, record.closed_as = Phase.CLOSED, reason
        self._aborts[reason] += 1
        return Abort(request=request, reason=reason)

    def on_verdict(self, verdict: Accepted | Rejected) -> Iterable[RequestRecord]:
        """The record that the verdict is for, none when its owner has left."""
        record = self._records.get(verdict.request)
        if record is None:
            self._late += 1
            return ()
        if record.verdict is not None:
            raise InvariantViolated(f"request {verdict.request} got a second verdict")
        record.verdict = verdict
        if isinstance(verdict, Accepted):
            record.phase = Phase.ACCEPTED
            self._accepted += 1
        else:
            record.phase = Phase.REJECTED
            self._rejected += 1
            del self._records[verdict.request]
        return (record,)

    def on_answer(self, answer: TextAnswer) -> Iterable[RequestRecord]:
        """The record of the question, none when its owner has left."""
        record = self._records.pop(answer.request, None)
        if record is None:
            self._late += 1
            return ()
        record.answer, record.phase = answer, Phase.ENDED
        return (record,)

    def on_text(self, message: TextEmitted, now_s: float) -> Iterable[RequestRecord]:
        """Spreads the rows over the records; returns those that have news."""
        touched: dict[RequestId, RequestRecord] = {}
        has_more = message.logprobs is not None or message.prompt_logprobs is not None
        if has_more and not any(request in self._records for request in unpack_i64(message.requests)):
            # Nothing is built for requests that are gone: a thousand log probabilities take milliseconds.
            self._late += rows("q", message.requests)
            deltas: Iterable[tuple[RequestId, ChoiceDelta]] = ()
        else:
            deltas = _deltas(message)
        for request, delta in deltas:
            record = self._records.get(request)
            if record is None:
                self._late += 1
                continue
            record.add_delta(delta)
            self._note_finish(record, delta)
            self._figures.observe(record.times, delta, now_s)
            touched[request] = record
        for request, end in _ends(message):
            record = self._records.pop(request, None)
            if record is None:
                self._late += 1
                continue
            record.finish(end)
            self._figures.observe_end(record.times, end, now_s)
            self._ended += 1
            self._failed += end.error is not None
            touched[request] = record
        return touched.values()

    def lose(self, texts: Iterable[TextId] | None = None) -> list[RequestRecord]:
        """The engine is gone, or these text workers of it: their requests are over, and nothing is owed for them."""
        gone = None if texts is None else set(texts)
        lost = [record for record in self._records.values() if gone is None or record.text in gone]
        for record in lost:
            self._finish_rest(record, FinishReason.ERROR)
            record.phase = Phase.LOST
            del self._records[record.request]
        self._lost += len(lost)
        return lost

    def samples(self) -> tuple[tuple[str, float], ...]:
        """Counters and histograms under their Prometheus names."""
        aborts = ((f'layered_llm_aborts_emitted_total{{reason="{r.name.lower()}"}}', float(n)) for r, n in self._aborts.items())
        finishes = (
            (f'layered_llm_choices_finished_total{{reason="{r.name.lower()}"}}', float(n))
            for r, n in self._finished.items()
            if r is not FinishReason.RUNNING
        )
        return (
            *aborts,
            *finishes,
            ("layered_llm_requests_accepted_total", float(self._accepted)),
            ("layered_llm_requests_rejected_total", float(self._rejected)),
            ("layered_llm_requests_ended_total", float(self._ended)),
            ("layered_llm_requests_failed_total", float(self._failed)),
            ("layered_llm_requests_lost_total", float(self._lost)),
            ("layered_llm_late_rows_total", float(self._late)),
            *self._figures.samples(),
        )

    def _count_end(self, reason: FinishReason) -> None:
        self._finished[reason] += 1

    def _finish_rest(self, record: RequestRecord, reason: FinishReason) -> None:
        """Counts the choices of an accepted request that end without a word from the engine: each choice is counted once."""
        if record.phase is Phase.ACCEPTED:
            self._finished[reason] += record.open_choices

    def _note_finish(self, record: RequestRecord, delta: ChoiceDelta) -> None:
        if delta.finish_reason is not FinishReason.RUNNING:
            record.open_choices -= 1
            record.finish_reason = max(record.finish_reason, delta.finish_reason)


def _deltas(message: TextEmitted) -> Iterable[tuple[RequestId, ChoiceDelta]]:
    tokens = unpack_i32(message.token_ids)
    counts, reasons = unpack_i32(message.token_counts), unpack_i8(message.finish_reasons)
    requests, choices = unpack_i64(message.requests), unpack_i32(message.choices)
    logprobs, prompts = sampled_logprobs(message), prompt_logprobs(message)
    first = 0
    for row, request in enumerate(requests):
        behind = first + counts[row]
        yield (
            RequestId(request),
            ChoiceDelta(
                choice=choices[row],
                text=message.texts[row],
                token_ids=tuple(tokens[first:behind]),
                finish_reason=FinishReason(reasons[row]),
                matched_stop=message.matched_stops[row],
                logprobs=tuple(each for each in logprobs[first:behind] if each is not None),
                prompt_logprobs=prompts[row] if prompts else (),
            ),
        )
        first = behind


def _ends(message: TextEmitted) -> Iterable[tuple[RequestId, RequestEnded]]:
    columns = (message.ended_prompt_tokens, message.ended_completion_tokens, message.ended_cached_tokens)
    counts = zip(*(unpack_i32(column) for column in columns), strict=True)
    for request, (prompt, completion, cached), error in zip(
        unpack_i64(message.ended), counts, message.ended_errors, strict=True
    ):
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
        yield RequestId(request), RequestEnded(usage=usage, error=error)
