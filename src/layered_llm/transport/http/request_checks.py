"""Which requests are refused for their header fields: how they are put into bytes, and whether their bodies may be JSON.

Must not know: routes, what is in a body, connections.

A request with two lengths may be two requests to a proxy before this server (request smuggling): it is refused, and its
connection, on which nobody knows where the next one begins, is closed (RFC 9112, section 6.1).

Many clients send no media type, and curl says that of a form: only a body that is surely no JSON is refused (RFC 9110, section
15.5.16). One that is compressed cannot be read.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from layered_llm.transport.http.api_error import ApiError, bad_request, error_of

HeaderFields: TypeAlias = Mapping[bytes, Sequence[str]]
"""By name in lower case, as ASGI has it, each as often as it is there, and so perhaps not at all."""

_LOOKED_AT: Final = frozenset(
    b"host origin content-type content-encoding content-length transfer-encoding authorization x-api-key x-request-id".split()
)
_VERSIONS: Final = frozenset({"1.0", "1.1", "2"})
_VAGUE: Final = frozenset({"", "*/*", "application/octet-stream", "application/x-www-form-urlencoded", "text/plain"})
"""What clients say who do not care: curl's `-d`, browsers that avoid a preflight."""


def fields_of(headers: Iterable[tuple[bytes, bytes]]) -> HeaderFields:
    """The header fields that are looked at before any handler."""
    found = defaultdict[bytes, list[str]](list)
    for name, value in headers:
        if name in _LOOKED_AT:
            found[name].append(value.decode("latin-1"))
    return found


def refused_framing(version: str, fields: HeaderFields) -> ApiError | None:
    """Why no request of HTTP `version` with these headers is answered, if so; the connection ends with the response."""
    if version not in _VERSIONS:
        message = f"This server does not speak HTTP/{version}; use HTTP/1.1 or HTTP/2."
        return error_of("http_version_not_supported", message)
    if fields[b"content-length"] and fields[b"transfer-encoding"]:
        return bad_request("The request has a Content-Length and a Transfer-Encoding; send one of them.", code="two_lengths")
    return None


def refused_body(fields: HeaderFields) -> ApiError | None:
    """Why a body with these headers is not read, if so."""
    coding = next(iter(fields[b"content-encoding"]), "").strip().lower()
    if coding not in ("", "identity"):
        return error_of("unsupported_media_type", f"The body is encoded as {coding!r}; send it as it is.")
    media_type = next(iter(fields[b"content-type"]), "").partition(";")[0].strip().lower()
    if media_type in _VAGUE or "json" in media_type:
        return None
    return error_of("unsupported_media_type", f"The body is of type {media_type!r}; send application/json.")
