"""Places to work at, given in turn to tenants that wait: `domain.turns` under trio.

Must not know: what is worked at.
"""

from types import TracebackType

import attrs
import trio

from layered_llm.domain.turns import Turn, Turns


@attrs.define(eq=False)
class FairPlaces:
    """So many pieces of work at a time: among tenants whoever was given least, within a tenant in order of arrival."""

    _places: int
    _turns: Turns[trio.Event] = attrs.field(init=False, factory=Turns)
    _taken: int = attrs.field(init=False, default=0)

    @property
    def has_waiting(self) -> bool:
        return self._turns.waiting_count > 0

    def enter(self, tenant: str, cost: int) -> "Place":
        """A turn, in order from now on. It has to be used as a context, which ends it."""
        turn = self._turns.enter(tenant, cost, trio.Event())
        self._give()
        return Place(self, turn)

    def leave(self, turn: Turn[trio.Event]) -> None:
        """For `Place` alone."""
        self._taken -= turn.is_given
        self._turns.leave(turn)
        self._give()

    def _give(self) -> None:
        while self._taken < self._places and (turn := self._turns.next()) is not None:
            self._taken += 1
            turn.item.set()


@attrs.frozen(eq=False)
class Place:
    """Waits for a place and has it for the block. Work that is cancelled while it waits leaves nothing and costs nothing."""

    _places: FairPlaces
    _turn: Turn[trio.Event]

    async def __aenter__(self) -> None:
        try:
            await self._turn.item.wait()
        except BaseException:
            self._places.leave(self._turn)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._places.leave(self._turn)
