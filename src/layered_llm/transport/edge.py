"""Waiting under trio on one direction of an edge-triggered file descriptor.

Must not know: ZMQ, messages.

A descriptor such as ZMQ_FD tells of a change once, and for both directions together: whoever looks first eats the edge of
the other. So each direction waits on a duplicate of its own (trio allows one waiter for each descriptor), and whoever looks
must wake the other direction by hand.
"""

import os
from types import TracebackType

import trio


class EdgeWaiter:
    """One direction: entered by the one task that uses it, which may park until an edge comes or somebody wakes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._in_use = False
        self._parked: trio.CancelScope | None = None
        self._closed = False

    def __enter__(self) -> None:
        if self._in_use:
            raise trio.BusyResourceError("another task is using this direction of the socket")
        self._in_use = True

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._in_use = False

    async def park(self) -> None:
        """Returns at an edge or a wake-up, which may be spurious. Raises ClosedResourceError when closed, also meanwhile."""
        if self._closed:
            raise trio.ClosedResourceError
        with trio.CancelScope() as scope:
            self._parked = scope
            try:
                await trio.lowlevel.wait_readable(self._descriptor)
            finally:
                self._parked = None

    def wake(self) -> None:
        """Makes a parked task look again; nothing happens when none is parked."""
        if self._parked is not None:
            self._parked.cancel()

    def close(self) -> None:
        """Harmless when repeated."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._descriptor)
            os.close(self._descriptor)
