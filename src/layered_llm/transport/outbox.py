"""What waits to be sent to a peer: with slots reserved for what must never fail to be sent, or as the peer has fallen behind.

Must not know: sockets, what a message means.

Whoever opens something that it must be able to close later reserves the slot of the closing word first. Emitting it is then
synchronous, cannot fail and cannot block, so that no cancellation comes between noticing and emitting.
An outbox is used with reservations for everything or for nothing: a message without one could take the slot of another.
Invariant: pending + reserved <= capacity. A message holds its slot until the link has taken it.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, Never, TypeVar

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.transport.ports import MessageSink

OutT = TypeVar("OutT")
PeerT = TypeVar("PeerT", bound=Hashable)

ENGINE_OUTBOX_MESSAGES: Final = 1 << 16
"""Far above what open requests, steps in flight and heartbeats add up to: an outbox that is full means a peer that hangs."""


class Outbox(Generic[OutT]):
    """A bounded queue in front of a link; written by any code of one trio thread, emptied by one task."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._pending: deque[OutT] = deque()
        self._reserved = 0
        self._has_reservations = False
        self._waiting_to_send = trio.lowlevel.ParkingLot()
        self._waiting_for_empty = trio.lowlevel.ParkingLot()

    @property
    def pending(self) -> int:
        """Messages that the link has not taken yet."""
        return len(self._pending)

    @property
    def reserved(self) -> int:
        """Slots reserved and neither used nor released."""
        return self._reserved

    def reserve(self, slots: int = 1) -> bool:
        """Whether `slots` were free; they are reserved then."""
        if len(self._pending) + self._reserved + slots > self._capacity:
            return False
        self._reserved += slots
        self._has_reservations = True
        return True

    def release(self, slots: int = 1) -> None:
        """Gives reserved slots back unused. Raises InvariantViolated when fewer are reserved."""
        if slots > self._reserved:
            raise InvariantViolated(f"{slots} outbox slots given back, but only {self._reserved} are reserved")
        self._reserved -= slots

    def emit(self, message: OutT) -> None:
        """Queues a message in a reserved slot, or in any free one of an outbox in which nothing was ever reserved.

        Raises InvariantViolated when there is none: the emitter's arithmetic is wrong, or the peer is not worth waiting for.
        """
        if self._reserved:
            self._reserved -= 1
        elif self._has_reservations:
            raise InvariantViolated(f"{type(message).__name__} emitted in a reserved slot, but only 0 are reserved")
        elif len(self._pending) >= self._capacity:
            raise InvariantViolated(f"{type(message).__name__} emitted into a full outbox of {self._capacity}")
        self._pending.append(message)
        self._waiting_to_send.unpark_all()

    async def run(self, link: MessageSink[OutT]) -> Never:
        """Sends what comes, in order, until it is cancelled; raises what `link.send` raises."""
        while True:
            while not self._pending:
                await self._waiting_to_send.park()
            await self.drain(link)

    async def drain(self, link: MessageSink[OutT]) -> None:
        """Sends what is pending, for a client that says its last words after `run` has ended.

        Under cancellation only inside a shield with a deadline. What was not sent stays pending.
        """
        while self._pending:
            # A cancelled send has not taken the message, and nothing can be cancelled between the send and the removal.
            await link.send(self._pending[0])
            self._pending.popleft()
        self._waiting_for_empty.unpark_all()

    async def flushed(self) -> None:
        """Waits until `run` has given everything to the link."""
        while self._pending:
            await self._waiting_for_empty.park()
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class DeferredSends(Generic[PeerT, OutT]):
    """Messages that peers have not taken yet, those of each peer in order.

    One that does not take a message at once has fallen behind: what comes later waits, too, until all before it is taken.
    Nobody else waits for it.
    """

    _take: Callable[[PeerT, OutT], bool]
    """Offers a peer a message; whether it is done with."""
    _waiting: dict[PeerT, deque[OutT]] = attrs.field(init=False, factory=dict)

    def send(self, peer: PeerT, message: OutT) -> bool:
        """False where the peer has fallen behind; the message waits then."""
        if peer not in self._waiting and self._take(peer, message):
            return True
        self.defer(peer, (message,))
        return False

    def defer(self, peer: PeerT, messages: Iterable[OutT]) -> None:
        """They wait for the next `retry`."""
        self._waiting.setdefault(peer, deque()).extend(messages)

    def retry(self) -> None:
        """Offers every peer what it has not taken, as far as it takes it now."""
        for peer, messages in list(self._waiting.items()):
            while messages and self._take(peer, messages[0]):
                messages.popleft()
            if not messages:
                del self._waiting[peer]

    def drop(self, peer: PeerT) -> None:
        """The peer has died."""
        self._waiting.pop(peer, None)
