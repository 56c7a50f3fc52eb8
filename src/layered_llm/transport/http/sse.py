"""Server-sent events as bytes.

Must not know: what an event says.

Source: WHATWG HTML, "Server-sent events". JSON has no raw line break, so one `data:` line holds any of it.
"""

import json
from collections.abc import Mapping
from typing import Final

HEARTBEAT: Final = b": ping\n\n"
"""A comment: keeps middleboxes from closing a silent connection, and is no event."""
DONE: Final = b"data: [DONE]\n\n"

HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


def to_json(value: object) -> bytes:
    """Compact UTF-8 JSON. Raises ValueError for NaN and the infinities, which JSON does not have."""
    return _ENCODER.encode(value).encode()


def event(value: object) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"
