"""Links in memory: the same ends as over ZMQ, with delays that a seed decides, in one thread and in trio's time.

Must not know: what a message means.

What holds for the real links holds here: each pair of ends is first in, first out; a message to a name that is not connected
is refused as UNREACHABLE, one to a peer whose queue is full as FULL; what is on its way to an end that closes is lost; a
cancelled receive loses nothing. Unlike there, a message is the same object on both sides: messages are frozen values.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.messages.api_text import ApiToText, TextToApi
from layered_llm.domain.messages.scheduler_runtime import RuntimeToScheduler, SchedulerToRuntime
from layered_llm.domain.messages.supervision import (
    ApiToSupervisor,
    EngineToSupervisor,
    SupervisorToApi,
    SupervisorToEngine,
)
from layered_llm.domain.messages.text_scheduler import SchedulerToText, TextToScheduler
from layered_llm.transport.ports import SendOutcome

OutT = TypeVar("OutT")
InT = TypeVar("InT")
MessageT = TypeVar("MessageT")

HIGH_WATER_MARK: Final = 1000
_ONLY_PEER: Final = "peer"

Delay = Callable[[], float]
"""Draws the seconds that the next message is on its way."""


def no_delay() -> float:
    """Every message is there at once."""
    return 0.0


class _Pipe(Generic[MessageT]):
    """One direction: messages become available in order, each after its delay."""

    def __init__(self, delay: Delay) -> None:
        self._delay = delay
        self._messages: deque[tuple[float, MessageT]] = deque()
        self._arrivals = trio.lowlevel.ParkingLot()
        self._last_at = 0.0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: MessageT) -> None:
        self._last_at = max(self._last_at, trio.current_time() + self._delay())
        self._messages.append((self._last_at, message))
        self._arrivals.unpark_all()

    async def take(self) -> tuple[MessageT, ...]:
        """Everything that has arrived, at least one message; nothing can be cancelled once it is taken."""
        await trio.lowlevel.checkpoint()
        while not self._messages or self._messages[0][0] > trio.current_time():
            if self._messages:
                await trio.sleep_until(self._messages[0][0])
            else:
                await self._arrivals.park()
        now, taken = trio.current_time(), []
        while self._messages and self._messages[0][0] <= now:
            taken.append(self._messages.popleft()[1])
        return tuple(taken)

    def drop_all(self) -> None:
        self._messages.clear()


@attrs.define(eq=False)
class _Address:
    """One bound, or soon to be bound, end, and who is connected to it."""

    delay: Delay
    is_bound: bool = False
    inbound: "_Pipe[tuple[str, Any]]" = attrs.field(init=False)
    outbound: "dict[str, _Pipe[Any]]" = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.inbound = _Pipe(self.delay)


class MemoryPeerLink(Generic[OutT, InT]):
    """Implements `PeerLink`."""

    def __init__(self, address: _Address) -> None:
        self._address = address

    async def receive(self) -> tuple[tuple[str, InT], ...]:
        return await self._address.inbound.take()

    def send_nowait(self, peer: str, message: OutT) -> SendOutcome:
        pipe = self._address.outbound.get(peer)
        if pipe is None:
            return SendOutcome.UNREACHABLE
        if len(pipe) >= HIGH_WATER_MARK:
            return SendOutcome.FULL
        pipe.put(message)
        return SendOutcome.SENT


class MemoryDealerLink(Generic[OutT, InT]):
    """Implements `MessageLink`, on the connecting side."""

    def __init__(self, address: _Address, name: str) -> None:
        self._address, self._name = address, name

    async def send(self, message: OutT) -> None:
        await trio.lowlevel.checkpoint()
        self._address.inbound.put((self._name, message))

    async def receive(self) -> tuple[InT, ...]:
        return await self._address.outbound[self._name].take()


class MemoryBoundLink(Generic[OutT, InT]):
    """Implements `MessageLink`, on the bound side of a link with one peer."""

    def __init__(self, address: _Address) -> None:
        self._address = address
        self._address.outbound.setdefault(_ONLY_PEER, _Pipe(address.delay))

    async def send(self, message: OutT) -> None:
        await trio.lowlevel.checkpoint()
        self._address.outbound[_ONLY_PEER].put(message)

    async def receive(self) -> tuple[InT, ...]:
        return tuple(message for _name, message in await self._address.inbound.take())


class MemoryLinks:
    """Implements `Links`. One object is the network of one engine."""

    def __init__(self, delay: Delay = no_delay) -> None:
        self._delay = delay
        self._addresses: dict[str, _Address] = {}

    @contextlib.contextmanager
    def bind_text_for_apis(self, address: str) -> Iterator[MemoryPeerLink[TextToApi, ApiToText]]:
        with self._bound(address) as end:
            yield MemoryPeerLink(end)

    @contextlib.contextmanager
    def connect_api_to_text(self, address: str, name: str) -> Iterator[MemoryDealerLink[ApiToText, TextToApi]]:
        with self._connected(address, name) as end:
            yield MemoryDealerLink(end, name)

    @contextlib.contextmanager
    def bind_scheduler_for_texts(self, address: str) -> Iterator[MemoryPeerLink[SchedulerToText, TextToScheduler]]:
        with self._bound(address) as end:
            yield MemoryPeerLink(end)

    @contextlib.contextmanager
    def connect_text_to_scheduler(
        self, address: str, name: str
    ) -> Iterator[MemoryDealerLink[TextToScheduler, SchedulerToText]]:
        with self._connected(address, name) as end:
            yield MemoryDealerLink(end, name)

    @contextlib.contextmanager
    def bind_scheduler_for_runtime(self, address: str) -> Iterator[MemoryBoundLink[SchedulerToRuntime, RuntimeToScheduler]]:
        with self._bound(address) as end:
            yield MemoryBoundLink(end)

    @contextlib.contextmanager
    def connect_runtime_to_scheduler(self, address: str) -> Iterator[MemoryDealerLink[RuntimeToScheduler, SchedulerToRuntime]]:
        """For a runtime that runs as a task."""
        with self._connected(address, _ONLY_PEER) as end:
            yield MemoryDealerLink(end, _ONLY_PEER)

    @contextlib.contextmanager
    def bind_supervisor_for_apis(self, address: str) -> Iterator[MemoryPeerLink[SupervisorToApi, ApiToSupervisor]]:
        with self._bound(address) as end:
            yield MemoryPeerLink(end)

    @contextlib.contextmanager
    def connect_api_to_supervisor(
        self, address: str, name: str
    ) -> Iterator[MemoryDealerLink[ApiToSupervisor, SupervisorToApi]]:
        with self._connected(address, name) as end:
            yield MemoryDealerLink(end, name)

    @contextlib.contextmanager
    def bind_supervisor_for_engine(self, address: str) -> Iterator[MemoryPeerLink[SupervisorToEngine, EngineToSupervisor]]:
        with self._bound(address) as end:
            yield MemoryPeerLink(end)

    @contextlib.contextmanager
    def connect_engine_to_supervisor(
        self, address: str, name: str
    ) -> Iterator[MemoryDealerLink[EngineToSupervisor, SupervisorToEngine]]:
        with self._connected(address, name) as end:
            yield MemoryDealerLink(end, name)

    @contextlib.contextmanager
    def _bound(self, address: str) -> Iterator[_Address]:
        end = self._addresses.setdefault(address, _Address(self._delay))
        if end.is_bound:
            raise InvariantViolated(f"{address} is bound already")
        end.is_bound = True
        try:
            yield end
        finally:
            end.is_bound = False
            end.inbound.drop_all()

    @contextlib.contextmanager
    def _connected(self, address: str, name: str) -> Iterator[_Address]:
        end = self._addresses.setdefault(address, _Address(self._delay))
        end.outbound.setdefault(name, _Pipe(self._delay))
        try:
            yield end
        finally:
            end.outbound.pop(name).drop_all()
