"""What peers call each other on every link, how long they wait for each other, and which have been silent for too long.

Must not know: links, processes, clocks (the time comes in as an argument), what follows from a silence.

Names are such as `api-3f2a`, `text-0`, `scheduler-0` and `runtime-0`. ZMQ's own heartbeats are answered by its I/O thread, so
that a process whose Python hangs looks alive; ours are sent by the tasks that do the work.
"""

import string
from typing import Final

from layered_llm.domain.ids import ApiId
from layered_llm.domain.messages.supervision import Role

STATE_TIMEOUT_S: Final = 2.0
HEARTBEAT_INTERVAL_S: Final = 1.0
STALL_S: Final = 10.0
"""A process that says nothing for so long is reported as stalled: `/health` is 503 until it speaks again."""
SILENCE_S: Final = 30.0
"""A process that says nothing for so long hangs, and is treated as dead."""
RESTART_WINDOW_S: Final = 600.0
"""What ended longer ago does not count against another restart."""


def peer_name(role: Role, index: int) -> str:
    """The name of an engine process on every link."""
    return f"{role.value}-{index}"


def api_peer_name(api: ApiId) -> str:
    """The name of an API process on every link."""
    return f"{Role.API.value}-{api:x}"


def api_of_peer(peer: str) -> ApiId | None:
    """The API process behind a name that `api_peer_name` made, None for any other name."""
    prefix, _, number = peer.partition("-")
    is_ours = prefix == Role.API.value and number and set(number) <= set(string.hexdigits)
    return ApiId(int(number, 16)) if is_ours else None


class Liveness:
    """How long each peer has been silent. Its listener calls `silent_s` about once in every HEARTBEAT_INTERVAL_S.

    A longer gap between two calls means that the listener itself was stopped (SIGSTOP, a suspended machine, a blocked loop)
    while its peers' heartbeats queued up unread: that time counts against nobody.
    """

    def __init__(self, *, now_s: float) -> None:
        self._last_heard_s: dict[str, float] = {}
        self._last_checked_s = now_s

    def seen(self, peer: str, now_s: float) -> None:
        """The peer said something, or is expected to from now on."""
        self._last_heard_s[peer] = now_s

    def silent_s(self, now_s: float) -> dict[str, float]:
        """By the peers' names, in the order in which they were first seen."""
        stopped_s = max(0.0, now_s - self._last_checked_s - 2 * HEARTBEAT_INTERVAL_S)
        self._last_checked_s = now_s
        self._last_heard_s = {peer: min(heard_s + stopped_s, now_s) for peer, heard_s in self._last_heard_s.items()}
        return {peer: now_s - heard_s for peer, heard_s in self._last_heard_s.items()}
