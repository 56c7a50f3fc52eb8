"""Links in memory: the same ends as over ZMQ, with delays that a seed decides, in one thread and in trio's time.

Must not know: what a message means.

What holds for the real links holds here: each pair of ends is first in, first out; a message to a name that is not connected
is refused as UNREACHABLE, one to a peer whose queue is full as FULL; what is on its way to an end that closes is lost; a
cancelled receive loses nothing. Unlike there, a message is the same object on both sides: messages are frozen values.

`kill`, `stall` and `garble` do to an end what the death, the suspension and the madness of its process do to a real one.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.transport.link_specs import API_TEXT, LinkSpec
from layered_llm.transport.ports import Garbled, SendOutcome

OutT = TypeVar("OutT")
InT = TypeVar("InT")
BoundT = TypeVar("BoundT")
ConnectedT = TypeVar("ConnectedT")
MessageT = TypeVar("MessageT")

HIGH_WATER_MARK: Final = 1000

Delay = Callable[[], float]
"""Draws the seconds that the next message is on its way."""


class LinkObserver(Protocol):
    """Sees every message of a network twice: when a link takes it, and when its receiver does."""

    def sent(self, message: object) -> None: ...

    def taken(self, message: object) -> None: ...


def no_delay() -> float:
    """Every message is there at once."""
    return 0.0


class _Unobserved:
    """Implements `LinkObserver`."""

    def sent(self, message: object) -> None:
        """Nobody looks."""

    def taken(self, message: object) -> None:
        """Nobody looks."""


class _Pipe(Generic[MessageT]):
    """One direction, for one receiver: messages become available in order, each after its delay."""

    def __init__(self, delay: Delay) -> None:
        self._delay = delay
        self._messages: deque[tuple[float, MessageT]] = deque()
        self._last_at = 0.0
        self._is_stalled = False
        self._waiting: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: MessageT) -> None:
        self._last_at = max(self._last_at, trio.current_time() + self._delay())
        self._messages.append((self._last_at, message))
        self._plan_wake()

    async def take(self) -> tuple[MessageT, ...]:
        """Everything that has arrived, at least one message; nothing can be cancelled once it is taken."""
        if self._next_at() <= trio.current_time():
            await trio.lowlevel.checkpoint()
        while (at := self._next_at()) > trio.current_time():
            await self._wait_until(at)
        now, taken = trio.current_time(), []
        while self._messages and self._messages[0][0] <= now:
            taken.append(self._messages.popleft()[1])
        return tuple(taken)

    def stall(self, is_stalled: bool) -> None:
        self._is_stalled = is_stalled
        self._plan_wake()

    def drop(self, is_lost: Callable[[MessageT], bool]) -> None:
        self._messages = deque(entry for entry in self._messages if not is_lost(entry[1]))
        self._plan_wake()

    def _next_at(self) -> float:
        return self._messages[0][0] if self._messages and not self._is_stalled else float("inf")

    def _plan_wake(self) -> None:
        """A receiver is woken once, when a message is there, and not also when it is put."""
        if self._waiting is not None:
            self._waiting.deadline = self._next_at()

    async def _wait_until(self, at: float) -> None:
        with trio.CancelScope(deadline=at) as scope:
            self._waiting = scope
            try:
                await trio.Event().wait()
            finally:
                self._waiting = None


@attrs.define(eq=False)
class _Address:
    """One bound, or soon to be bound, end, and who is connected to it."""

    delay: Delay
    observer: LinkObserver
    is_bound: bool = False
    inbound: "_Pipe[tuple[str, Any]]" = attrs.field(init=False)
    outbound: "dict[str, _Pipe[Any]]" = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.inbound = _Pipe(self.delay)

    def connect(self, name: str) -> "_Pipe[Any]":
        return self.outbound.setdefault(name, _Pipe(self.delay))

    def send_in(self, name: str, message: object) -> None:
        self.observer.sent(message)
        self.inbound.put((name, message))

    def send_out(self, name: str, message: object, limit: int) -> SendOutcome:
        pipe = self.outbound.get(name)
        if pipe is None:
            return SendOutcome.UNREACHABLE
        if len(pipe) >= limit:
            return SendOutcome.FULL
        self.observer.sent(message)
        pipe.put(message)
        return SendOutcome.SENT

    async def take_in(self) -> tuple[tuple[str, Any], ...]:
        taken = await self.inbound.take()
        for _name, message in taken:
            self.observer.taken(message)
        return taken

    async def take_out(self, name: str) -> tuple[Any, ...]:
        # An end whose peer was killed waits like one that nobody ever writes to.
        pipe = self.outbound.get(name)
        taken = await (pipe if pipe is not None else _Pipe[Any](self.delay)).take()
        for message in taken:
            self.observer.taken(message)
        return taken


class MemoryPeerLink(Generic[OutT, InT]):
    """Implements `PeerLink`."""

    def __init__(self, address: _Address, high_water_mark: int) -> None:
        self._address, self._high_water_mark = address, high_water_mark

    async def receive(self) -> tuple[tuple[str, InT | Garbled], ...]:
        return await self._address.take_in()

    def send_nowait(self, peer: str, message: OutT) -> SendOutcome:
        return self._address.send_out(peer, message, self._high_water_mark)


class MemoryDealerLink(Generic[OutT, InT]):
    """Implements `MessageLink`, on the connecting side."""

    def __init__(self, address: _Address, name: str) -> None:
        self._address, self._name = address, name

    async def send(self, message: OutT) -> None:
        await trio.lowlevel.checkpoint()
        if self._name in self._address.outbound:
            self._address.send_in(self._name, message)

    async def receive(self) -> tuple[InT, ...]:
        return await self._address.take_out(self._name)


class MemoryGroupLink(Generic[OutT, InT]):
    """Implements `GroupLink`."""

    def __init__(self, address: _Address, peers: Sequence[str]) -> None:
        self._address, self._peers = address, peers
        for peer in peers:
            address.connect(peer)

    async def send(self, message: OutT) -> None:
        await trio.lowlevel.checkpoint()
        self._address.observer.sent(message)
        for pipe in (self._address.outbound[peer] for peer in self._peers if peer in self._address.outbound):
            pipe.put(message)

    async def receive(self) -> tuple[tuple[str, InT], ...]:
        return await self._address.take_in()


class MemoryLinks:
    """Implements `Links`. One object is the network of one engine."""

    def __init__(
        self, delay: Delay = no_delay, observer: LinkObserver | None = None, high_water_mark: int = HIGH_WATER_MARK
    ) -> None:
        """`high_water_mark`: messages that wait for one API process before a text worker's next one is refused as FULL."""
        self._delay = delay
        self._observer = observer if observer is not None else _Unobserved()
        self._high_water_mark = high_water_mark
        self._addresses: dict[str, _Address] = {}

    def kill(self, name: str, *, loses_sent: bool) -> None:
        """The process behind `name` dies: what is on its way to it is lost, and with `loses_sent` what it had sent, too."""
        for address in self._addresses.values():
            if address.outbound.pop(name, None) is not None and loses_sent:
                address.inbound.drop(lambda entry: entry[0] == name)

    def garble(self, address: str, name: str) -> None:
        """What the end bound at `address` receives next from `name` is no message."""
        self._at(address).inbound.put((name, Garbled(reason="garbled on purpose")))

    def stall(self, name: str) -> None:
        """The process behind `name` takes no messages until `resume`; they queue up to the limit, then sends are FULL."""
        self._set_stalled(name, is_stalled=True)

    def resume(self, name: str) -> None:
        """It takes messages again."""
        self._set_stalled(name, is_stalled=False)

    def _set_stalled(self, name: str, *, is_stalled: bool) -> None:
        for address in self._addresses.values():
            if name in address.outbound:
                address.outbound[name].stall(is_stalled)

    @contextlib.contextmanager
    def bind(self, spec: LinkSpec[BoundT, ConnectedT], address: str) -> Iterator[MemoryPeerLink[BoundT, ConnectedT]]:
        mark = self._high_water_mark if spec is API_TEXT else HIGH_WATER_MARK
        with self._bound(address) as end:
            yield MemoryPeerLink(end, mark)

    @contextlib.contextmanager
    def bind_group(
        self, spec: LinkSpec[BoundT, ConnectedT], address: str, peers: Sequence[str]
    ) -> Iterator[MemoryGroupLink[BoundT, ConnectedT]]:
        with self._bound(address) as end:
            yield MemoryGroupLink(end, peers)

    @contextlib.contextmanager
    def connect(
        self, spec: LinkSpec[BoundT, ConnectedT], address: str, name: str
    ) -> Iterator[MemoryDealerLink[ConnectedT, BoundT]]:
        end = self._at(address)
        end.connect(name)
        try:
            yield MemoryDealerLink(end, name)
        finally:
            end.outbound.pop(name, None)

    def _at(self, address: str) -> _Address:
        return self._addresses.setdefault(address, _Address(self._delay, self._observer))

    @contextlib.contextmanager
    def _bound(self, address: str) -> Iterator[_Address]:
        end = self._at(address)
        if end.is_bound:
            raise InvariantViolated(f"{address} is bound already")
        end.is_bound = True
        try:
            yield end
        finally:
            end.is_bound = False
            end.inbound.drop(lambda _entry: True)
