"""Which requests are refused for the way in which they are put into bytes, whatever they ask for.

Must not know: routes, bodies, connections.

A request with two lengths may be two requests to a proxy before this server (request smuggling): it is refused, and its
connection, on which nobody knows where the next one begins, is closed (RFC 9112, section 6.1).
"""

from http import HTTPStatus
from typing import Final

from layered_llm.transport.http.api_error import INVALID_REQUEST, ApiError, bad_request

_VERSIONS: Final = frozenset({"1.0", "1.1", "2"})


def refused_framing(version: str, *, has_length: bool, has_transfer_encoding: bool) -> ApiError | None:
    """Why no request of HTTP `version` with these headers is answered, if so; the connection ends with the response."""
    if version not in _VERSIONS:
        return ApiError(
            status=HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
            type=INVALID_REQUEST,
            message=f"This server does not speak HTTP/{version}; use HTTP/1.1 or HTTP/2.",
            code="http_version_not_supported",
        )
    if has_length and has_transfer_encoding:
        return bad_request("The request has a Content-Length and a Transfer-Encoding; send one of them.", code="two_lengths")
    return None
