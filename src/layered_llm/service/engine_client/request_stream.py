"""One open request: what came for it and was not read yet, how it ended, and how its one reader waits for more.

Must not know: the table that it is in, how its abort travels, HTTP.
"""

import enum
from collections.abc import Callable
from typing import Final, assert_never

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.messages.api_text import Accepted, ApiToText, Rejected, TextAnswer
from layered_llm.domain.messages.supervision import RequestFate
from layered_llm.domain.ports.engine import BacklogFull, EngineLost, RequestAborted, RequestSummary
from layered_llm.domain.stream import (
    LOGPROB_BYTES,
    Backlog,
    ChoiceDelta,
    RequestEnded,
    StreamEvent,
    logprob_entries,
    merged,
    size_bytes_of,
)
from layered_llm.service.engine_client.request_figures import RequestTimes
from layered_llm.transport.outbox import Outbox

ENGINE_LOST: Final = "engine_lost"
REJECTED: Final = "rejected"
ABORTED_BY_ID: Final = "aborted"
MAX_MESSAGE_CHARS: Final = 200
MOST_BYTES_AT_ONCE: Final = 1 << 18
"""Of what a reader is given by one call, and the choice that completes it: less than a millisecond of joining."""


@attrs.define(eq=False)
class TextConnection:
    """One text worker of one generation of the engine."""

    text: TextId
    generation: int
    outbox: Outbox[ApiToText]
    open_requests: int = 0
    aborts_sent: int = 0


@enum.unique
class Phase(enum.Enum):
    """Where a request is, as its opener sees it."""

    SUBMITTED = enum.auto()
    ACCEPTED = enum.auto()
    REJECTED = enum.auto()
    ENDED = enum.auto()
    CLOSED = enum.auto()
    LOST = enum.auto()


_OPEN: Final = (Phase.SUBMITTED, Phase.ACCEPTED)


@attrs.define(eq=False)
class RequestStream:
    """Implements the protocols `EngineStream` and `EngineQuestion`: a request is read as one of the two."""

    request: RequestId
    connection: TextConnection
    times: RequestTimes
    tenant: str
    """Who may end it by its id."""
    open_choices: int
    """Choices without a finish reason yet."""
    _leave: Callable[["RequestStream", AbortReason], None] = attrs.field(kw_only=True)
    """Called when it is closed before it is over."""
    _finished: dict[FinishReason, int] = attrs.field(kw_only=True)
    """Counts each choice that the engine has ended once: when its end is taken, or is never going to be."""
    incarnation: int = attrs.field(init=False, default=0)
    """How often it was submitted before: what comes of an earlier time is not its own."""
    output_ids: tuple[bytes, ...] = attrs.field(init=False, default=())
    """Of each choice the packed tokens that it is submitted with."""
    body: RequestId = attrs.field(kw_only=True)
    """The first request of the body that this one belongs to: itself, unless it joined another."""
    name: str | None = attrs.field(init=False, default=None)
    """What its client calls it."""
    phase: Phase = attrs.field(init=False, default=Phase.SUBMITTED)
    admission: Accepted | Rejected | None = attrs.field(init=False, default=None)
    """The verdict."""
    result: TextAnswer | None = attrs.field(init=False, default=None)
    """The answer to a question, which has neither choices nor, unless it is rejected, a verdict."""
    closed_as: AbortReason | None = attrs.field(init=False, default=None)
    """Why, when its phase is CLOSED."""
    finish_reason: FinishReason = attrs.field(init=False, default=FinishReason.RUNNING)
    """Of its choices that ended, that of the highest number."""
    ended: RequestEnded | None = attrs.field(init=False, default=None)
    """How the engine ended it."""
    backlog: Backlog | None = attrs.field(init=False, default=None)
    """Has to have room for what nobody fetched yet; None where nothing bounds it.

    Of the first delta of each choice only what is said of the prompt, since that can be long and comes with every choice.
    """
    is_over_backlog: bool = attrs.field(init=False, default=False)
    """It had none: the request is to be left, unless it ended with the message that did not fit."""
    news: trio.Event = attrs.field(init=False, factory=trio.Event)
    """Set when there is something for the reader."""
    _booked_bytes: int = attrs.field(init=False, default=0)
    _pending: dict[int, list[ChoiceDelta]] = attrs.field(init=False, factory=dict)
    """Of each choice what nobody fetched yet, merged so that a slow reader costs little more than its text: of `k` tokens in at
    most log2(k) deltas, each longer than the next, so that a token is copied as often at most."""
    has_unread_end: bool = attrs.field(init=False, default=False)
    """Its end is there to be fetched."""
    _is_dropped: bool = attrs.field(init=False, default=False)
    """Its owner has left; nothing is there to be fetched any more."""

    @property
    def is_over(self) -> bool:
        """Ended, rejected, lost or closed: nothing more comes, and nothing is owed for it; what came may still be fetched."""
        return self.phase not in _OPEN

    @property
    def was_left(self) -> bool:
        """Closed before its end: its abort was emitted."""
        return self.phase is Phase.CLOSED

    @property
    def fate(self) -> RequestFate | None:
        """How it ended; None for a question, and for what is still open."""
        if not self.times.choices:
            return None
        match self.phase:
            case Phase.SUBMITTED | Phase.ACCEPTED:
                return None
            case Phase.LOST:
                return RequestFate(reason=ENGINE_LOST)
            case Phase.CLOSED:
                reason = self.closed_as or AbortReason.CLIENT_GONE
                return RequestFate(reason=ABORTED_BY_ID if reason is AbortReason.ADMINISTRATIVE else reason.name.lower())
            case Phase.REJECTED:
                message = self.admission.message if isinstance(self.admission, Rejected) else ""
                return RequestFate(reason=REJECTED, error=message[:MAX_MESSAGE_CHARS])
            case Phase.ENDED:
                error = None if self.ended is None or self.ended.error is None else self.ended.error[:MAX_MESSAGE_CHARS]
                return RequestFate(reason=(FinishReason.ERROR if error else self.finish_reason).name.lower(), error=error)
            case _ as unreachable:
                assert_never(unreachable)

    def summary(self) -> RequestSummary:
        """What is known of it by now."""
        tokens = sum(self.times.choice_tokens.values())
        return RequestSummary(
            prompt_tokens=self.admission.prompt_tokens if isinstance(self.admission, Accepted) else 0,
            completion_tokens=tokens if self.ended is None else self.ended.usage.completion_tokens,
            first_token_s=self.times.first_token_s,
            name=self.name,
            fate=self.fate,
        )

    async def verdict(self) -> Accepted | Rejected:
        """Whether the request is queued. Raises EngineLost."""
        if self.admission is not None:
            await trio.lowlevel.checkpoint()
        while self.admission is None:
            await self._next_news()
        return self.admission

    async def answer(self) -> TextAnswer | Rejected:
        """What a question came to. Raises EngineLost."""
        while self.result is None:
            if isinstance(self.admission, Rejected):
                return self.admission
            await self._next_news()
        return self.result

    async def receive(self) -> tuple[StreamEvent, ...]:
        """What came since the last call, at least one event; the rest of it with the next call. Raises EngineLost."""
        if not isinstance(self.admission, Accepted):
            raise InvariantViolated("a request is read after it was accepted")
        await trio.lowlevel.checkpoint()
        while not (self._pending or self.has_unread_end):
            await self._next_news()
        return self.take_events()

    def bound(self, backlog: Backlog) -> None:
        """What is not fetched has to fit into `backlog`."""
        self.backlog = backlog

    def join(self, first: RequestId) -> None:
        """Who ends `first` by its id ends this request too."""
        self.body = first

    def call(self, name: str) -> None:
        """Who ends `name` ends this request."""
        self.name = name

    def close(self, reason: AbortReason) -> None:
        """Leaves the request; harmless when it is over."""
        if self.phase in _OPEN:
            self._leave(self, reason)
        if self._is_dropped:
            return
        self._is_dropped, self.has_unread_end = True, False
        for deltas in self._pending.values():
            if deltas[-1].finish_reason is not FinishReason.RUNNING:  # whoever left before its end was read has aborted it
                self.finish_reason = FinishReason.ABORT
                self._finished[FinishReason.ABORT] += 1
        self._pending.clear()
        if self._booked_bytes:
            self._give_back()

    async def _next_news(self) -> None:
        match self.phase:
            case Phase.LOST:
                raise EngineLost("the engine process that had the request is gone")
            case Phase.CLOSED if self.closed_as is AbortReason.ADMINISTRATIVE:
                raise RequestAborted("the request was ended by its id")
            case Phase.CLOSED if self.closed_as is AbortReason.OVER_BUDGET and self.is_over_backlog:
                raise BacklogFull("the reader took too little of what came")
            case Phase.CLOSED:
                raise EngineLost("the request was closed")
            case Phase.ENDED if self._is_dropped:
                raise EngineLost("the request was closed")
            case Phase.ENDED | Phase.REJECTED:
                raise InvariantViolated("nothing follows the end of a request")
            case Phase.SUBMITTED | Phase.ACCEPTED:
                await self.news.wait()
                self.news = trio.Event()

    def take_events(self) -> tuple[StreamEvent, ...]:
        """What came since the last call, or as much of it as is done at once; the end, once, after all deltas."""
        events: list[StreamEvent] = []
        size_bytes = 0
        for choice in list(self._pending):  # one that is taken comes last again
            waiting = self._pending.pop(choice)
            delta = waiting[0] if len(waiting) == 1 else merged(waiting)
            if delta.finish_reason is not FinishReason.RUNNING:
                self._finished[delta.finish_reason] += 1
            events.append(delta)
            if self._pending and (size_bytes := size_bytes + size_bytes_of(delta)) >= MOST_BYTES_AT_ONCE:
                return tuple(events)
        if self._booked_bytes:
            self._give_back()
        if self.has_unread_end and self.ended is not None:
            self.has_unread_end = False
            events.append(self.ended)
        return tuple(events)

    def _give_back(self) -> None:
        if self.backlog is not None:
            self.backlog.give_back(self._booked_bytes)
            self._booked_bytes = 0

    def add_delta(self, delta: ChoiceDelta) -> None:
        """A choice has more for the reader. Raises InvariantViolated where it had finished."""
        waiting = self._pending.get(delta.choice)
        if waiting is None:
            self._pending[delta.choice] = [delta]
            if delta.prompt_logprobs:
                self._book(LOGPROB_BYTES * logprob_entries(delta.prompt_logprobs))
        elif waiting[-1].finish_reason is not FinishReason.RUNNING:
            raise InvariantViolated(f"choice {delta.choice} goes on after it finished")
        else:
            self._book(size_bytes_of(delta))
            waiting.append(delta)
            while len(waiting) > 1 and len(waiting[-2].token_ids) <= len(waiting[-1].token_ids):
                waiting[-2:] = [merged(waiting[-2:])]
        if delta.finish_reason is not FinishReason.RUNNING:
            self.open_choices -= 1
            self.finish_reason = max(self.finish_reason, delta.finish_reason)

    def _book(self, size_bytes: int) -> None:
        if self.backlog is None or self.is_over_backlog:
            return
        if self.backlog.take(size_bytes) is None:
            self._booked_bytes += size_bytes
        else:
            self.is_over_backlog = True
