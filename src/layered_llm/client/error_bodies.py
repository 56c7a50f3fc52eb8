"""Reads what a server says about a failure, in the dialects that servers speak.

Must not know: HTTP statuses, where the body came from.

Nested `{"error": {…}}` is OpenAI, vLLM and llama.cpp; flat `{"object": "error", "message": …}` is SGLang;
`{"error": "text"}` is TGI; `{"detail": …}` is FastAPI.
"""

import json
from collections.abc import Mapping
from typing import Final

from layered_llm.client.errors import ApiError

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
