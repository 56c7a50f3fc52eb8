"""One line for each request when it is over, for people or as JSON.

Must not know: connections, where lines go.

Invariant: whatever a client sent, a line is one line of visible ASCII and of bounded length. It has neither query nor headers,
in which there may be keys.
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import attrs

_MAX_CHARS: Final = 256
_PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"\\')
"""What is written as it is in a line of text; `%` too, as paths come escaped."""


@attrs.frozen(kw_only=True)
class AccessEntry:
    """What a line says of one request."""

    method: str
    path: str
    """As it was sent, without its query."""
    status: int | None
    """None where the client left before there was one."""
    is_complete: bool
    """Whether the client was there for all of the answer."""
    total_s: float
    queued_s: float | None = None
    """From the request's first byte until the engine had queued it: its body read, parsed and made tokens, each by turns."""
    first_token_s: float | None = None
    """From the request's first byte until the first token of any of its choices, the wait for the first step included."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """Of all prompts and choices, as far as they were sampled."""
    finish_reasons: Sequence[str] = ()
    """As `GET /requests/ID` has them, each once."""
    id: str | None = None
    """That of the answer; None where the request generates nothing."""
    request_id: str = ""
    """That of the X-Request-Id header."""
    key: str = ""
    """The name of the API key, none where there was none."""


@attrs.frozen(kw_only=True)
class AccessLog:
    """Writes the lines."""

    write: Callable[[str], object]
    """Takes a line without its end; must not wait."""
    wall_clock: Callable[[], float]
    """Unix time in seconds."""
    is_json: bool = False

    def note(self, entry: AccessEntry) -> None:
        now = datetime.fromtimestamp(self.wall_clock(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.write(_as_json(now, entry) if self.is_json else _as_text(now, entry))


def _as_json(now: str, entry: AccessEntry) -> str:
    members: dict[str, Any] = {
        "time": now,
        "method": entry.method[:_MAX_CHARS],
        "path": entry.path[:_MAX_CHARS],
        "status": entry.status,
        "complete": entry.is_complete,
        "prompt_tokens": entry.prompt_tokens,
        "completion_tokens": entry.completion_tokens,
        "queued_ms": _ms(entry.queued_s),
        "first_token_ms": _ms(entry.first_token_s),
        "total_ms": _ms(entry.total_s),
        "finish_reason": ",".join(entry.finish_reasons) or None,
        "id": None if entry.id is None else entry.id[:_MAX_CHARS],
        "request_id": entry.request_id,
        "key": entry.key or None,
    }
    return json.dumps(members, separators=(",", ":")).replace("\x7f", "\\u007f")


def _as_text(now: str, entry: AccessEntry) -> str:
    times = {"queued": entry.queued_s, "first_token": entry.first_token_s, "total": entry.total_s}
    members: dict[str, object] = {
        "prompt": entry.prompt_tokens,
        "completion": entry.completion_tokens,
        **{name: None if time_s is None else f"{_ms(time_s):g}ms" for name, time_s in times.items()},
        "finish": ",".join(entry.finish_reasons) or None,
        "id": entry.id,
        "request": entry.request_id,
        "key": entry.key or None,
    }
    status = "-" if entry.status is None else str(entry.status)
    head = [now, *map(_plain, (entry.method, entry.path, status)), *(() if entry.is_complete else ("(client gone)",))]
    return " ".join([*head, *(f"{name}={_plain(str(value))}" for name, value in members.items() if value is not None)])


def _plain(text: str) -> str:
    """Cut, and with everything but visible ASCII escaped as in a URL."""
    return quote(text[:_MAX_CHARS], safe=_PLAIN, errors="backslashreplace")


def _ms(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s * 1_000, 1)
