"""Work that other responses would feel, one piece at a time and by turns between accounts.

Must not know: what the work is, what an account is.

A thread shares the interpreter with the event loop, and what it calls may not hand it over meanwhile (the JSON decoder does
not, for up to a tenth of a second). So there is one such thread at a time, and it rests as long as it worked: half of the time
is the event loop's.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import attrs
import trio

from layered_llm.transport.fair_places import FairPlaces, Place

ResultT = TypeVar("ResultT")

LONGEST_REST_S: Final = 0.25


@attrs.define(eq=False)
class FairWork:
    """Of one process."""

    _places: FairPlaces = attrs.field(init=False, factory=lambda: FairPlaces(1))
    _thread: trio.CapacityLimiter = attrs.field(init=False, factory=lambda: trio.CapacityLimiter(1))
    _rested_at_s: float = attrs.field(init=False, default=-float("inf"))

    def turn(self, account: str, cost: int) -> Place:
        """Inside of it nobody else has a turn; keep it short, and ask again for each portion of what is long."""
        return self._places.enter(account, cost)

    async def in_turn(self, account: str, cost: int, work: Callable[[], ResultT]) -> ResultT:
        """`work()`, some milliseconds of the event loop's time, in a turn that ends after a rest as long.

        A task gets its turn of the loop once in each round, and what another needs takes many of them: without the rests each
        of its rounds would be as long as all the work that is there.
        """
        async with self.turn(account, cost):
            began_s = trio.current_time()
            result = work()
            await trio.sleep(min(trio.current_time() - began_s, LONGEST_REST_S))
            return result

    async def in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """`work()` in a thread; call it inside of a turn.

        When cancelled the result is dropped; the next thread waits until this one has ended.
        """
        await trio.sleep_until(self._rested_at_s)
        began_s = trio.current_time()
        try:
            return await trio.to_thread.run_sync(work, limiter=self._thread, abandon_on_cancel=True)
        finally:
            ended_s = trio.current_time()
            self._rested_at_s = ended_s + min(ended_s - began_s, LONGEST_REST_S)
