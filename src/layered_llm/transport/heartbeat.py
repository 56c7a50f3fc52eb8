"""Which peers have been silent for too long.

Must not know: clocks (the time comes in as an argument), links, what follows from a silence.

ZMQ's own heartbeats are answered by its I/O thread, so that a process whose Python hangs looks alive; these are sent by the
tasks that do the work.
"""

from collections.abc import Iterable

import attrs


@attrs.frozen(kw_only=True)
class HeartbeatTiming:
    """How often peers speak, and how long they may be silent."""

    interval_s: float
    timeout_s: float

    def __attrs_post_init__(self) -> None:
        if not 0 < 2 * self.interval_s <= self.timeout_s:
            raise ValueError("a peer must be allowed to miss one heartbeat: timeout_s is at least twice interval_s")


class Liveness:
    """Bookkeeping of one listener, which calls `silent` about once in every interval.

    A longer gap between two calls means that the listener itself was stopped (SIGSTOP, a suspended machine, a blocked loop)
    while its peers' heartbeats queued up unread: that time counts against nobody.
    """

    def __init__(self, timing: HeartbeatTiming, *, now: float) -> None:
        self._timing = timing
        self._last_heard: dict[str, float] = {}
        self._last_checked = now

    @property
    def peers(self) -> Iterable[str]:
        """Names of the peers that are watched."""
        return self._last_heard.keys()

    def seen(self, peer: str, now: float) -> None:
        """The peer said something, or is expected to from now on."""
        self._last_heard[peer] = now

    def forget(self, peer: str) -> None:
        """The peer left or was declared dead. An unknown peer is no error."""
        self._last_heard.pop(peer, None)

    def silent(self, now: float) -> tuple[str, ...]:
        """Peers not heard of for longer than the timeout, in the order in which they were first seen."""
        self._forgive(now)
        return tuple(peer for peer, heard in self._last_heard.items() if now - heard > self._timing.timeout_s)

    def quiet(self, now: float, longer_than_s: float) -> tuple[str, ...]:
        """Peers not heard of for longer than this, which is less than the timeout. Ask right behind `silent`."""
        return tuple(peer for peer, heard in self._last_heard.items() if now - heard > longer_than_s)

    def _forgive(self, now: float) -> None:
        stopped_s = now - self._last_checked - 2 * self._timing.interval_s
        self._last_checked = now
        if stopped_s > 0:
            for peer, heard in self._last_heard.items():
                self._last_heard[peer] = min(heard + stopped_s, now)
