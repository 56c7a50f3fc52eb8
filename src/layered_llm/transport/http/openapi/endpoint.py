"""One endpoint: where it is found, who answers, and what both sides say.

Must not know: which endpoints there are.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeAlias

import attrs
from quart import Response

from layered_llm.transport.http.exchange.api_keys import Access
from layered_llm.transport.http.exchange.json_schema import Json, ref

JSON: Final = "application/json"
PREFIX: Final = "/v1"

Handler: TypeAlias = Callable[..., Awaitable[Response]]
"""Called with the context and, by their names, the parts of the path."""

BODY_ERRORS: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
"""Of each endpoint that takes a body."""


@attrs.frozen
class Endpoint:
    """A row of the table from which both the routes and the document are made."""

    name: str
    """Unique; the operation's id in the document."""
    path: str
    """As the framework writes it: `/models/<path:name>`."""
    handler: Handler
    summary: str
    tag: str = attrs.field(kw_only=True)
    answers: Mapping[str, Json] = attrs.field(kw_only=True)
    """The bodies of a 200 by their media types."""
    methods: Sequence[str] = attrs.field(default=("GET",), kw_only=True)
    is_aliased: bool = attrs.field(default=False, kw_only=True)
    """Found with `/v1` and without."""
    access: Access = attrs.field(default=Access.KEY, kw_only=True)
    """Who may ask for it."""
    body: Json | None = attrs.field(default=None, kw_only=True)
    errors: Sequence[int] = attrs.field(default=(), kw_only=True)
    """Statuses of error bodies that are the endpoint's own, beside those that every endpoint may have."""
    bodies: Mapping[int, Json] = attrs.field(factory=dict, kw_only=True)
    """Of other statuses whose body is no error object."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (f"{PREFIX}{self.path}", self.path) if self.is_aliased else (self.path,)


def json_answer(component: str) -> dict[str, Json]:
    """The `answers` of an endpoint that always answers with this component."""
    return {JSON: ref(component)}
