"""The events of all engine streams of one response, as one sequence, and how long the response waits for the next of them.

Must not know: JSON, what an event means for the response.

A response with one prompt reads its stream directly. One with several has a task for each stream, in the nursery of the
exchange: a response generator may hold no nursery across its yields. A task takes no second batch before its first one was
taken, so that a slow client is seen by the engine's queues and not hidden by one of ours.

Only time spent waiting for the engine counts, so that a client who is slow to take what it is sent loses nothing by it; and
only output starts the count again, so that a comment that keeps the connection alive does not.
"""

import enum
from collections.abc import Sequence
from itertools import repeat
from typing import Protocol

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ports.engine import EngineStream, RequestAborted
from layered_llm.domain.stream import RequestEnded, StreamEvent
from layered_llm.transport.http.exchange.api_error import ApiError, error_of
from layered_llm.transport.http.exchange.drain import Drain

Batch = tuple[tuple[int, StreamEvent], ...]
"""Events with the place of their prompt in the request."""


class Quiet(enum.Enum):
    """Why a wait brought no event."""

    SILENCE = enum.auto()
    DRAINED = enum.auto()
    """The server ends; nothing more may be waited for."""
    OVERDUE = enum.auto()
    """The response's patience is over."""


class PromptAborted(RequestAborted):
    """The request of one prompt was ended by its id; those of the others go on."""

    def __init__(self, prompt: int) -> None:
        super().__init__("the request was ended by its id")
        self.prompt = prompt


class EventSource(Protocol):
    """Where a response takes its events from."""

    async def receive(self) -> Batch:
        """All events that are there, at least one. Cancelling it loses none.

        Raises EngineLost, PromptAborted as the one after which it goes on with the other prompts.
        """


@attrs.define(eq=False)
class Patience:
    """First with the time to the first token, then, from each output to the next, with the idle time; `inf` is no bound.

    It is that of the whole response: where there are several choices, any of them counts.
    """

    _first_token_s: float
    _idle_s: float
    _has_output: bool = attrs.field(init=False, default=False)
    left_s: float = attrs.field(init=False, default=attrs.Factory(lambda self: self._first_token_s, takes_self=True))

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    def spend(self, waited_s: float) -> None:
        """So much was waited, and nothing came."""
        self.left_s -= waited_s

    def renew(self) -> None:
        """Output came."""
        self._has_output, self.left_s = True, self._idle_s

    def error(self) -> ApiError:
        """What to tell the client when it is over."""
        if self._has_output:
            return error_of("idle_timeout", f"No token came for {self._idle_s:g} s.")
        return error_of("first_token_timeout", f"No token came within {self._first_token_s:g} s.")


async def next_batch(source: EventSource, drain: Drain, patience: Patience, timeout_s: float) -> Batch | Quiet:
    """The next events of `source`, or why there are none within `timeout_s`."""
    wait_s = min(timeout_s, patience.left_s)
    with drain.bounded(wait_s):
        batch = await source.receive()
        patience.renew()
        return batch
    if drain.is_over:
        return Quiet.DRAINED
    patience.spend(wait_s)
    return Quiet.OVERDUE if patience.is_over else Quiet.SILENCE


def open_source(streams: Sequence[EngineStream], nursery: trio.Nursery) -> EventSource:
    """The source of a response to the accepted requests `streams`, one for each prompt."""
    if len(streams) == 1:
        return _OneStream(streams[0])
    sender, receiver = trio.open_memory_channel[Batch | Exception](0)
    for prompt, stream in enumerate(streams):
        nursery.start_soon(_feed, prompt, stream, sender.clone())
    sender.close()
    return _ManyStreams(receiver)


@attrs.define
class _OneStream:
    _stream: EngineStream

    async def receive(self) -> Batch:
        try:
            return tuple(zip(repeat(0), await self._stream.receive(), strict=False))
        except RequestAborted as error:
            raise PromptAborted(0) from error


@attrs.define
class _ManyStreams:
    _receiver: "trio.MemoryReceiveChannel[Batch | Exception]"
    _error: Exception | None = None
    """What came behind the last events that were taken."""

    async def receive(self) -> Batch:
        if self._error is not None:
            await trio.lowlevel.checkpoint()
            raise self._taken_error()
        events = [*self._events(await self._receiver.receive())]
        try:
            while self._error is None:
                events.extend(self._events(self._receiver.receive_nowait()))
        except (trio.WouldBlock, trio.EndOfChannel):
            pass
        if not events:
            raise self._taken_error()
        return tuple(events)

    def _events(self, item: Batch | Exception) -> Batch:
        if isinstance(item, Exception):
            self._error = item
            return ()
        return item

    def _taken_error(self) -> Exception:
        error, self._error = self._error, None
        if error is None:
            raise InvariantViolated("a source has neither events nor an error")
        return error


async def _feed(prompt: int, stream: EngineStream, sender: "trio.MemorySendChannel[Batch | Exception]") -> None:
    with sender:
        try:
            ended = False
            while not ended:
                events = await stream.receive()
                ended = isinstance(events[-1], RequestEnded)
                await sender.send(tuple((prompt, event) for event in events))
        except RequestAborted:
            await sender.send(PromptAborted(prompt))
        except Exception as error:  # noqa: BLE001 - raised again by the receiver, which can still tell the client
            await sender.send(error)
