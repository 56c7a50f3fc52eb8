"""Everything that can go wrong with a server, as exceptions that say whose word it is, and what a server says about a failure.

Must not know: httpx, where a body came from.

All derive from `ClientError`; any other exception that leaves this package is a bug of ours or a misuse by the caller.

Servers speak dialects. Nested `{"error": {…}}` is OpenAI, vLLM and llama.cpp; flat `{"object": "error", "message": …}` is
SGLang; `{"error": "text"}` is TGI; `{"detail": …}` is FastAPI.
"""

import json
from collections.abc import Mapping
from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class ApiError:
    """What a server said about a failure; every field but the message may be missing."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None
    """As text: OpenAI sends words, vLLM and llama.cpp numbers."""


class ClientError(Exception):
    """The request did not end as asked, for a reason outside the caller's program."""


class ConnectFailed(ClientError):  # noqa: N818 - states what happened
    """No connection, or it broke before an answer began; the server may or may not have seen the request."""


class ApiStatusError(ClientError):
    """The server answered with an HTTP status other than 2xx, before any token; a redirection is not followed."""

    def __init__(
        self, status: int, error: ApiError, *, retry_after_s: float | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(f"HTTP {status}: {error.message}")
        self.status = status
        self.error = error
        self.retry_after_s = retry_after_s
        """From `retry-after-ms` or a numeric `retry-after`; None when the server gave neither."""
        self.request_id = request_id


class StreamError(ClientError):
    """The server gave up in the middle of a stream and said so."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class StreamTruncated(ClientError):  # noqa: N818 - states what happened
    """The stream ended, or its connection broke, before `[DONE]`: what was received may be a part of the answer."""


class MalformedStream(ClientError):  # noqa: N818 - states what happened
    """The server sent something that is not a stream of completion chunks."""


class EventTooLarge(MalformedStream):
    """One event is larger than the parser's limit."""


class StreamTimeout(ClientError):  # noqa: N818 - states what happened
    """The server was silent for too long; see the subclasses for which silence."""


class FirstTokenTimeout(StreamTimeout):
    """No token came within the time to first token."""


class IdleTimeout(StreamTimeout):
    """The stream had begun, then no event came within the idle time; comments (keep-alives) do not count as events."""


_EXCERPT_CHARS: Final = 500


def read_error_body(body: bytes) -> ApiError:
    """The error in a whole response body, which may be anything; at worst its first characters are the message."""
    text = body.decode(errors="replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return find_error(value) or ApiError(message=_excerpt(text) or "(empty body)")


def find_error(value: object) -> ApiError | None:
    """The error that a decoded JSON value carries; None when it carries none."""
    match value:
        case {"error": {**fields}}:
            return _from_fields(fields)
        case {"error": str(message), **rest}:
            return ApiError(message=message, type=_optional_text(rest.get("error_type")))
        case {"object": "error", **fields}:
            return _from_fields(fields)
        case {"detail": detail}:
            return ApiError(message=_excerpt(detail if isinstance(detail, str) else json.dumps(detail)))
        case _:
            return None


def _from_fields(fields: Mapping[object, object]) -> ApiError:
    message = fields.get("message")
    return ApiError(
        message=message if isinstance(message, str) else _excerpt(json.dumps(fields)),
        type=_optional_text(fields.get("type")),
        param=_optional_text(fields.get("param")),
        code=_optional_text(fields.get("code")),
    )


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)


def _excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT_CHARS else f"{text[:_EXCERPT_CHARS]}…"
