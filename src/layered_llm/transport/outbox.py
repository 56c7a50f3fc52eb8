"""What waits to be sent to one peer, with slots reserved for what must never fail to be sent.

Must not know: sockets, what a message means.

Whoever opens something that it must be able to close later reserves the slot of the closing word first. Emitting it is then
synchronous, cannot fail and cannot block, so that no cancellation comes between noticing and emitting.
Invariant: pending + reserved <= capacity. A message holds its slot until the link has taken it.
"""

from collections import deque
from typing import Generic, Never, TypeVar

import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.transport.ports import MessageSink

OutT = TypeVar("OutT")


class Outbox(Generic[OutT]):
    """A bounded queue in front of a link; written by any code of one trio thread, emptied by one task."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._pending: deque[OutT] = deque()
        self._reserved = 0
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
        return True

    def release(self, slots: int = 1) -> None:
        """Gives reserved slots back unused."""
        self._use(slots)

    def emit(self, message: OutT) -> None:
        """Queues a message in a slot that was reserved for it. Raises InvariantViolated when none was."""
        self._use(1)
        self._pending.append(message)
        self._waiting_to_send.unpark_all()

    def try_emit(self, message: OutT) -> bool:
        """Queues a message that nobody reserved for, if a slot is free; whether it did."""
        if not self.reserve():
            return False
        self.emit(message)
        return True

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

    def _use(self, slots: int) -> None:
        if slots > self._reserved:
            raise InvariantViolated(f"{slots} outbox slots used, but only {self._reserved} are reserved")
        self._reserved -= slots
