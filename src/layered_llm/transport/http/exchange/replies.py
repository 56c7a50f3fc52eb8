"""JSON responses.

Must not know: what they say.
"""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from quart import Response

from layered_llm.transport.http.exchange import sse
from layered_llm.transport.http.exchange.api_error import ApiError

JSON_TYPE: Final = "application/json"


def json_reply(body: object, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    return Response(sse.to_json(body), status=status, headers=dict(headers or {}), content_type=JSON_TYPE)


def error_reply(error: ApiError, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    """With `headers` beside those of the error."""
    return json_reply(error.body(), error.status, {**error.headers(), **headers})
