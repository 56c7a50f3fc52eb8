"""The open requests of one API process: what each waits for, what came for it, and whether leaving it owes an abort.

Must not know: sockets, event loops, HTTP. Time comes in as an argument.

A record is made by `open` and leaves the table in exactly one of four ways: rejected, ended, closed by its owner (which owes
the abort), or lost with the engine. What comes for a request that is not in the table is late: dropped and counted.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

import attrs

from layered_llm.domain.columns import unpack_i8, unpack_i32, unpack_i64
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.messages.api_text import Abort, Accepted, Rejected, TextAnswer, TextEmitted
from layered_llm.domain.metrics import ABORTS_EMITTED, Measured, counter, metrics_of
from layered_llm.domain.stream import (
    Backlog,
    ChoiceDelta,
    LogprobRun,
    RequestEnded,
    SampledLogprob,
    StreamEvent,
    Usage,
    logprob_entries,
)
from layered_llm.service.delta_logprobs import DeltaLogprobs
from layered_llm.service.request_figures import RequestFigures, RequestTimes

MOST_BYTES_AT_ONCE: Final = 1 << 18
"""Of what a reader is given by one call, and the choice that completes it: less than a millisecond of joining."""
_TOKEN_BYTES: Final = 40
_LOGPROB_BYTES: Final = 64
"""Of what waits to be fetched: a number, and 8 packed bytes beside the token's name."""


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
    backlog: Backlog | None = None
    """Has to have room for what nobody fetched yet; None where nothing bounds it.

    Of the first delta of each choice only what is said of the prompt, since that can be long and comes with every choice.
    """
    is_over_backlog: bool = False
    """It had none: the request is to be left, unless it ended with the message that did not fit."""
    _booked_bytes: int = 0
    _pending: dict[int, list[ChoiceDelta]] = attrs.field(factory=dict)
    """Of each choice what nobody fetched yet, merged so that a slow reader costs little more than its text: of `k` tokens in at
    most log2(k) deltas, each longer than the next, so that a token is copied as often at most."""
    _end: RequestEnded | None = None

    @property
    def has_events(self) -> bool:
        return bool(self._pending) or self._end is not None

    def take_events(self) -> tuple[StreamEvent, ...]:
        """What came since the last call, or as much of it as is done at once; the end, once, behind all deltas."""
        events: list[StreamEvent] = []
        size_bytes = 0
        for choice in list(self._pending):  # one that is taken comes last again
            delta = _merged(self._pending.pop(choice))
            if delta.finish_reason is not FinishReason.RUNNING:
                self._count_end(delta.finish_reason)
            events.append(delta)
            if self._pending and (size_bytes := size_bytes + _size_bytes(delta)) >= MOST_BYTES_AT_ONCE:
                break
        if not self._pending:
            if self._booked_bytes:
                self._give_back()
            if self._end is not None:
                events.append(self._end)
                self._end = None
        return tuple(events)

    def drop_events(self) -> None:
        """Nobody takes them any more: who left before the end of a choice was told has aborted it."""
        self.is_dropped = True
        last = [deltas[-1] for deltas in self._pending.values()]
        if any(delta.finish_reason is not FinishReason.RUNNING for delta in last):
            self.finish_reason = FinishReason.ABORT
        for delta in last:
            if delta.finish_reason is not FinishReason.RUNNING:
                self._count_end(FinishReason.ABORT)
        self._pending.clear()
        self._give_back()
        self._end = None

    def _give_back(self) -> None:
        if self.backlog is not None and self._booked_bytes:
            self.backlog.give_back(self._booked_bytes)
            self._booked_bytes = 0

    def add_delta(self, delta: ChoiceDelta) -> None:
        waiting = self._pending.get(delta.choice)
        if waiting is None:
            self._pending[delta.choice] = [delta]
            if delta.prompt_logprobs:
                self._book(_LOGPROB_BYTES * logprob_entries(delta.prompt_logprobs))
            return
        if waiting[-1].finish_reason is not FinishReason.RUNNING:
            raise InvariantViolated(f"choice {delta.choice} goes on after it finished")
        self._book(_size_bytes(delta))
        waiting.append(delta)
        while len(waiting) > 1 and len(waiting[-2].token_ids) <= len(waiting[-1].token_ids):
            waiting[-2:] = [_merged(waiting[-2:])]

    def _book(self, size_bytes: int) -> None:
        if self.backlog is None or self.is_over_backlog:
            return
        if self.backlog.take(size_bytes) is None:
            self._booked_bytes += size_bytes
        else:
            self.is_over_backlog = True

    def finish(self, end: RequestEnded) -> None:
        self.phase, self._end, self.error, self.usage = Phase.ENDED, end, end.error, end.usage

    @property
    def is_over(self) -> bool:
        """Nothing more comes; what came may still be there to be fetched."""
        return self.phase not in (Phase.SUBMITTED, Phase.ACCEPTED)


def _size_bytes(delta: ChoiceDelta) -> int:
    """About what it takes to keep `delta` until it is fetched."""
    logprobs = logprob_entries(delta.logprobs) + logprob_entries(delta.prompt_logprobs)
    return 4 * len(delta.text) + _TOKEN_BYTES * len(delta.token_ids) + _LOGPROB_BYTES * logprobs


def _merged(deltas: Sequence[ChoiceDelta]) -> ChoiceDelta:
    """One delta of a choice for several that came in this order."""
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    return ChoiceDelta(
        choice=last.choice,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        finish_reason=last.finish_reason,
        matched_stop=last.matched_stop,
        logprobs=_joined([delta.logprobs for delta in deltas if delta.logprobs]),
        prompt_logprobs=_joined([delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs]),
    )


def _joined(parts: Sequence[Sequence[SampledLogprob]]) -> Sequence[SampledLogprob]:
    runs = [part for part in parts if isinstance(part, LogprobRun)]
    if len(parts) <= 1:
        return parts[0] if parts else ()
    return LogprobRun.joined(runs) if len(runs) == len(parts) else tuple(chain.from_iterable(parts))


@attrs.define
class OpenRequests:
    """The table of records, and the counters of everything that left it."""

    _records: dict[RequestId, RequestRecord] = attrs.field(factory=dict)
    _accepted: int = counter("requests_accepted_total", "Requests that were queued.")
    _rejected: int = counter("requests_rejected_total", "Requests that were refused.")
    _lost: int = counter("requests_lost_total", "Requests whose engine process died.")
    _late: int = counter("late_rows_total", "Rows of output that came for a request that was over.")
    _ended: int = counter("requests_ended_total", "Accepted requests that the engine ended, whatever their finish reasons.")
    _failed: int = counter("requests_failed_total", "Requests that ended with an error of the engine.")
    _finished: dict[FinishReason, int] = counter(
        "choices_finished_total",
        "Choices that ended, by finish reason.",
        label="reason",
        factory=lambda: {reason: 0 for reason in FinishReason if reason is not FinishReason.RUNNING},
    )
    _aborts: dict[AbortReason, int] = counter(ABORTS_EMITTED, label="reason", factory=lambda: dict.fromkeys(AbortReason, 0))
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
        for record, delta in self._deltas(message):
            record.add_delta(delta)
            self._note_finish(record, delta)
            self._figures.observe(record.times, delta, now_s)
            touched[record.request] = record
        for request, end in _ends(message):
            ended = self._records.pop(request, None)
            if ended is None:
                self._late += 1
                continue
            ended.finish(end)
            self._figures.observe_end(ended.times, end, now_s)
            self._ended += 1
            self._failed += end.error is not None
            touched[request] = ended
        return touched.values()

    def _deltas(self, message: TextEmitted) -> Iterable[tuple[RequestRecord, ChoiceDelta]]:
        """The rows of requests that are open; nothing is built for the others, which are counted."""
        tokens = unpack_i32(message.token_ids)
        counts, reasons = unpack_i32(message.token_counts), unpack_i8(message.finish_reasons)
        requests, choices = unpack_i64(message.requests), unpack_i32(message.choices)
        has_more = message.logprobs is not None or message.prompt_logprobs is not None
        logprobs = DeltaLogprobs(message) if has_more else None
        behind = 0
        for row, number in enumerate(requests):
            first, behind = behind, behind + counts[row]
            record = self._records.get(RequestId(number))
            if record is None:
                self._late += 1
                continue
            yield (
                record,
                ChoiceDelta(
                    choice=choices[row],
                    text=message.texts[row],
                    token_ids=tuple(tokens[first:behind]),
                    finish_reason=FinishReason(reasons[row]),
                    matched_stop=message.matched_stops[row],
                    logprobs=() if logprobs is None else logprobs.sampled(first, behind),
                    prompt_logprobs=() if logprobs is None else logprobs.prompt(row),
                ),
            )

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

    def metrics(self) -> tuple[Measured, ...]:
        return (*metrics_of(self), *metrics_of(self._figures))

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


def _ends(message: TextEmitted) -> Iterable[tuple[RequestId, RequestEnded]]:
    columns = (message.ended_prompt_tokens, message.ended_completion_tokens, message.ended_cached_tokens)
    counts = zip(*(unpack_i32(column) for column in columns), strict=True)
    for request, (prompt, completion, cached), error in zip(
        unpack_i64(message.ended), counts, message.ended_errors, strict=True
    ):
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
        yield RequestId(request), RequestEnded(usage=usage, error=error)
