"""The end of the service as requests see it: first no new ones, then an end to those that are still open.

Must not know: signals, the server, what is waited for.

Invariant: from `begin` on, no bounded wait lasts beyond the deadline, those that were already waiting included.
"""

import contextlib
import math
from collections.abc import Iterator

import attrs
import trio


@attrs.define(eq=False)
class Drain:
    """Not begun, begun (`is_active`), or over (`is_over`); begin it in the trio thread, as often as you like."""

    _timeout_s: float
    """How long open responses may go on after `begin`."""
    _deadline: float = attrs.field(init=False, default=math.inf)
    """On trio's clock."""
    _waits: set[trio.CancelScope] = attrs.field(init=False, factory=set)
    _open: int = attrs.field(init=False, default=0)
    """Responses that `hold` keeps open."""
    _all_closed: trio.Event = attrs.field(init=False, factory=trio.Event)
    """Set when the last one closes, and then replaced."""

    @property
    def is_active(self) -> bool:
        return self._deadline < math.inf

    @property
    def is_over(self) -> bool:
        return self.is_active and trio.current_time() >= self._deadline

    @property
    def open_responses(self) -> int:
        return self._open

    def begin(self) -> None:
        if self.is_active:
            return
        self._deadline = trio.current_time() + self._timeout_s
        for wait in self._waits:
            wait.deadline = min(wait.deadline, self._deadline)

    def hold(self, owner: contextlib.ExitStack) -> None:
        """Has `wait_drained` wait until `owner` is closed."""
        self._open += 1
        owner.callback(self._release)

    def _release(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._all_closed.set()
            self._all_closed = trio.Event()

    async def wait_drained(self) -> None:
        """Returns when no response is open, at the latest when the drain is over."""
        with self.bounded():
            while self._open:
                await self._all_closed.wait()

    @contextlib.contextmanager
    def bounded(self, timeout_s: float = math.inf) -> Iterator[trio.CancelScope]:
        """A cancel scope that ends after `timeout_s`, or with the drain, whichever is first."""
        with trio.CancelScope(deadline=min(trio.current_time() + timeout_s, self._deadline)) as scope:
            self._waits.add(scope)
            try:
                yield scope
            finally:
                self._waits.discard(scope)
