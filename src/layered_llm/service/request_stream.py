"""One open request, for the one task that reads it.

Must not know: the table it stands in, how its abort travels.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import Accepted, Rejected, TextAnswer
from layered_llm.domain.messages.supervision import RequestFate
from layered_llm.domain.stream import Backlog, StreamEvent
from layered_llm.service.ended_requests import fate_of
from layered_llm.service.open_requests import Phase, RequestRecord
from layered_llm.transport.http.engine_port import BacklogFull, EngineLost, RequestAborted, RequestSummary

if TYPE_CHECKING:
    from layered_llm.service.engine_client import TextConnection


@attrs.define(eq=False)
class RequestStream:
    """Implements the protocols `EngineStream` and `EngineQuestion`: a request is read as one of the two."""

    _record: RequestRecord
    connection: "TextConnection"
    _close: Callable[["RequestStream", AbortReason], None]
    tenant: str
    """Who may end it by its id."""
    _news: trio.Event = attrs.field(factory=trio.Event)
    body: RequestId = attrs.field(init=False)
    """The first request of the body that this one belongs to: itself, unless it joined another."""

    name: str | None = attrs.field(init=False, default=None)
    """What its client calls it."""

    @body.default
    def _own_body(self) -> RequestId:
        return self._record.request

    @property
    def request(self) -> RequestId:
        return self._record.request

    @property
    def is_over(self) -> bool:
        """Ended, rejected, lost or closed: nothing is owed for it any more."""
        return self._record.is_over

    @property
    def was_left(self) -> bool:
        """Closed before its end: its abort was emitted."""
        return self._record.phase is Phase.CLOSED

    @property
    def fate(self) -> RequestFate | None:
        """How it ended; None for a question, and for what is still open."""
        return fate_of(self._record) if self._record.is_over and self._record.times.choices else None

    def summary(self) -> RequestSummary:
        """What is known of it by now."""
        record, verdict = self._record, self._record.verdict
        return RequestSummary(
            prompt_tokens=verdict.prompt_tokens if isinstance(verdict, Accepted) else 0,
            completion_tokens=record.times.tokens if record.usage is None else record.usage.completion_tokens,
            first_token_s=record.times.first_token_s,
            name=self.name,
            fate=self.fate,
        )

    async def verdict(self) -> Accepted | Rejected:
        """Whether the request is queued. Raises EngineLost."""
        if self._record.verdict is not None:
            await trio.lowlevel.checkpoint()
        while self._record.verdict is None:
            await self._next_news()
        return self._record.verdict

    async def answer(self) -> TextAnswer | Rejected:
        """What a question came to. Raises EngineLost."""
        while self._record.answer is None:
            if isinstance(self._record.verdict, Rejected):
                return self._record.verdict
            await self._next_news()
        return self._record.answer

    async def receive(self) -> tuple[StreamEvent, ...]:
        """What came since the last call, at least one event; the rest of it with the next call. Raises EngineLost."""
        if not isinstance(self._record.verdict, Accepted):
            raise InvariantViolated("a request is read after it was accepted")
        await trio.lowlevel.checkpoint()
        while not self._record.has_events:
            await self._next_news()
        return self._record.take_events()

    def bound(self, backlog: Backlog) -> None:
        """What is not fetched has to fit into `backlog`."""
        self._record.backlog = backlog

    @property
    def is_over_backlog(self) -> bool:
        return self._record.is_over_backlog

    def join(self, first: RequestId) -> None:
        """Who ends `first` by its id ends this request too."""
        self.body = first

    def call(self, name: str) -> None:
        """Who ends `name` ends this request."""
        self.name = name

    def close(self, reason: AbortReason) -> None:
        """Leaves the request; harmless when it is over."""
        self._close(self, reason)
        self._record.drop_events()

    def wake(self) -> None:
        """There is news for the reader."""
        self._news.set()

    async def _next_news(self) -> None:
        match self._record.phase:
            case Phase.LOST:
                raise EngineLost("the engine process that had the request is gone")
            case Phase.CLOSED if self._record.closed_as is AbortReason.ADMINISTRATIVE:
                raise RequestAborted("the request was ended by its id")
            case Phase.CLOSED if self._record.closed_as is AbortReason.OVER_BUDGET and self._record.is_over_backlog:
                raise BacklogFull("the reader took too little of what came")
            case Phase.CLOSED:
                raise EngineLost("the request was closed")
            case Phase.ENDED if self._record.is_dropped:
                raise EngineLost("the request was closed")
            case Phase.ENDED | Phase.REJECTED:
                raise InvariantViolated("nothing follows the end of a request")
            case Phase.SUBMITTED | Phase.ACCEPTED:
                await self._news.wait()
                self._news = trio.Event()
