"""What peers call each other on every link, and how long they wait for each other.

Must not know: links, processes, what follows from a silence.

Names are such as `api-3f2a`, `text-0`, `scheduler-0` and `runtime-0`.
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
