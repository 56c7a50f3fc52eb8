"""The open requests of one API process: spreads what comes over them, and emits the abort of each that is left.

Must not know: links, processes, HTTP. Time comes in as an argument.

A request is entered by `open` and leaves the table in exactly one of four ways: rejected, ended, closed by its owner (which
owes the abort), or lost with its connection. What comes for a request that is not in the table, or for an earlier incarnation
of one that is, is late: dropped and counted.
"""

from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

import attrs

from layered_llm.domain.columns import unpack_i8, unpack_i32, unpack_i64
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import Abort, Accepted, Rejected, TextAnswer, TextEmitted
from layered_llm.domain.metrics import ABORTS_EMITTED, Measured, counter, metrics_of
from layered_llm.domain.stream import ChoiceDelta, RequestEnded, Usage
from layered_llm.service.engine_client.delta_logprobs import DeltaLogprobs
from layered_llm.service.engine_client.ended_requests import MAX_ENDED_REQUESTS, EndedRequest
from layered_llm.service.engine_client.request_figures import RequestFigures, RequestTimes
from layered_llm.service.engine_client.request_stream import Phase, RequestStream, TextConnection

_WITHOUT_A_WORD: Final = {Phase.CLOSED: FinishReason.ABORT, Phase.LOST: FinishReason.ERROR}
"""What the choices of an accepted request end by that the engine does not end: each choice is counted once."""


@attrs.define
class OpenRequests:
    """The table of records, and the counters of everything that left it."""

    streams: dict[RequestId, RequestStream] = attrs.field(init=False, factory=dict)
    """Those that are open."""
    ended: deque[EndedRequest] = attrs.field(init=False, factory=lambda: deque(maxlen=MAX_ENDED_REQUESTS))
    """The last ones, oldest first."""
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

    def open(
        self,
        request: RequestId,
        connection: TextConnection,
        now_s: float,
        *,
        tenant: str = "",
        choices: int = 1,
        max_tokens: int | None = None,
    ) -> RequestStream:
        """Enters a request; the outbox of `connection` has a slot reserved for its abort. A question has no choices."""
        if request in self.streams:
            raise InvariantViolated(f"request {request} is open already")
        times = RequestTimes(now_s, choices, max_tokens)
        stream = RequestStream(
            request, connection, times, tenant, choices, body=request, leave=self.close, finished=self._finished
        )
        self.streams[request] = stream
        connection.open_requests += 1
        return stream

    def close(self, stream: RequestStream, reason: AbortReason) -> None:
        """An open request is left: its abort goes out in the slot that was kept for it. What came may still be read."""
        stream.closed_as = reason
        self._aborts[reason] += 1
        stream.connection.aborts_sent += 1
        self._leave(stream, Phase.CLOSED, Abort(request=stream.request, reason=reason, incarnation=stream.incarnation))

    def _leave(self, stream: RequestStream, phase: Phase, abort: Abort | None = None) -> None:
        """A request is over; where that is by itself, the slot of its abort is given back."""
        if self.streams.pop(stream.request, None) is None:
            raise InvariantViolated(f"request {stream.request} is left twice")
        if stream.phase is Phase.ACCEPTED and phase in _WITHOUT_A_WORD:
            self._finished[_WITHOUT_A_WORD[phase]] += stream.open_choices
        stream.phase = phase
        stream.connection.open_requests -= 1
        if (fate := stream.fate) is not None:
            self.ended.append(EndedRequest(body=stream.body, name=stream.name, tenant=stream.tenant, fate=fate))
        if abort is None:
            stream.connection.outbox.release()
        else:
            stream.connection.outbox.emit(abort)
        stream.news.set()

    def on_verdict(self, verdict: Accepted | Rejected) -> None:
        """Whether a request is queued."""
        stream = self.streams.get(verdict.request)
        if stream is None or stream.incarnation != verdict.incarnation:
            self._late += 1
            return
        if stream.admission is not None:
            raise InvariantViolated(f"request {verdict.request} got a second verdict")
        stream.admission = verdict
        if isinstance(verdict, Accepted):
            self._accepted += 1
            stream.phase = Phase.ACCEPTED
            stream.news.set()
        else:
            self._rejected += 1
            self._leave(stream, Phase.REJECTED)

    def on_answer(self, answer: TextAnswer) -> None:
        """What a question came to."""
        stream = self.streams.get(answer.request)
        if stream is None:
            self._late += 1
            return
        stream.result = answer
        self._leave(stream, Phase.ENDED)

    def on_text(self, message: TextEmitted, now_s: float) -> None:
        """Spreads the rows over the requests, and leaves those whose readers fetch too little."""
        over = list[RequestStream]()
        for stream, delta in self._deltas(message):
            stream.add_delta(delta)
            self._figures.observe(stream.times, delta, now_s)
            stream.news.set()
            if stream.is_over_backlog:
                over.append(stream)
        if message.ended:
            self._note_ends(message, now_s)
        for stream in over:
            if not stream.is_over:
                stream.close(AbortReason.OVER_BUDGET)

    def _note_ends(self, message: TextEmitted, now_s: float) -> None:
        prompts, completions = unpack_i32(message.ended_prompt_tokens), unpack_i32(message.ended_completion_tokens)
        columns = (prompts, completions, unpack_i32(message.ended_cached_tokens), message.ended_errors)
        for number, prompt, completion, cached, error in zip(unpack_i64(message.ended), *columns, strict=True):
            stream = self.streams.get(RequestId(number))
            if stream is None or stream.incarnation != message.incarnation:
                self._late += 1
                continue
            usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
            end = RequestEnded(usage=usage, error=error)
            stream.ended, stream.has_unread_end = end, True
            self._figures.observe_end(stream.times, end, now_s)
            self._ended += 1
            self._failed += error is not None
            self._leave(stream, Phase.ENDED)

    def _deltas(self, message: TextEmitted) -> Iterable[tuple[RequestStream, ChoiceDelta]]:
        """The rows of requests that are open; nothing is built for the others, which are counted."""
        tokens = unpack_i32(message.token_ids)
        counts, reasons = unpack_i32(message.token_counts), unpack_i8(message.finish_reasons)
        requests, choices = unpack_i64(message.requests), unpack_i32(message.choices)
        has_more = message.logprobs is not None or message.prompt_logprobs is not None
        logprobs, incarnation = DeltaLogprobs(message) if has_more else None, message.incarnation
        behind = 0
        for row, number in enumerate(requests):
            first, behind = behind, behind + counts[row]
            stream = self.streams.get(RequestId(number))
            if stream is None or stream.incarnation != incarnation:
                self._late += 1
                continue
            yield (
                stream,
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

    def lose(self, gone: Collection[TextConnection]) -> None:
        """These connections are no more: their requests are over, and nothing is owed for them."""
        for stream in list(self.streams.values()):
            if stream.connection in gone:
                self._lost += 1
                self._leave(stream, Phase.LOST)

    def metrics(self) -> tuple[Measured, ...]:
        return (*metrics_of(self), *metrics_of(self._figures))
