"""Which bodies are read as JSON, by what their headers say of them.

Must not know: routes, what is in a body.

Many clients send no type, and curl says that of a form: only a body that is surely no JSON is refused (RFC 9110, section
15.5.16). One that is compressed cannot be read.
"""

from http import HTTPStatus
from typing import Final

from layered_llm.transport.http.api_error import INVALID_REQUEST, ApiError

_VAGUE: Final = frozenset({"", "*/*", "application/octet-stream", "application/x-www-form-urlencoded", "text/plain"})
"""What clients say who do not care: curl's `-d`, browsers that avoid a preflight."""


def refused_body(content_type: str, content_encoding: str) -> ApiError | None:
    """Why a body with these headers is not read, if so."""
    coding = content_encoding.strip().lower()
    if coding not in ("", "identity"):
        return _unsupported(f"The body is encoded as {coding!r}; send it as it is.")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in _VAGUE or "json" in media_type:
        return None
    return _unsupported(f"The body is of type {media_type!r}; send application/json.")


def _unsupported(message: str) -> ApiError:
    return ApiError(
        status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE, type=INVALID_REQUEST, message=message, code="unsupported_media_type"
    )
