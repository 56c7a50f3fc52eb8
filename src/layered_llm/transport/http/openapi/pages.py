"""`/openapi.json` and `/docs`, made once from the table of endpoints, themselves included.

Must not know: which endpoints there are.

The page needs nothing but this server: it is one file, fetches the document beside it, and shows that.
"""

from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import Final

from quart import Response

from layered_llm.transport.http.exchange import sse
from layered_llm.transport.http.exchange.api_keys import Access, ApiKeys
from layered_llm.transport.http.exchange.context import HttpContext
from layered_llm.transport.http.openapi.components import COMPONENTS
from layered_llm.transport.http.openapi.document import document
from layered_llm.transport.http.openapi.endpoint import JSON, Endpoint

_TITLE: Final = "layered_llm"
_HTML: Final = "text/html; charset=utf-8"
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
    "Referrer-Policy": "no-referrer",
}


def with_description(endpoints: Sequence[Endpoint], *, version: str, keys: ApiKeys) -> tuple[Endpoint, ...]:
    """`endpoints` and the two that describe them all."""
    described = (*endpoints, *_own(b""))
    told = document(
        described, dict(COMPONENTS), title=_TITLE, version=version, needs_key=keys.are_needed, has_admin_key=keys.have_admin
    )
    return (*endpoints, *_own(sse.to_json(told)))


def _own(told: bytes) -> tuple[Endpoint, Endpoint]:
    """The two endpoints for the document `told`, which describes them too but not by what they answer."""
    page = files("layered_llm.transport.http.openapi").joinpath("docs.html").read_bytes()
    opened = partial(Endpoint, tag="server", access=Access.OPEN)
    document_of, page_of = partial(_sent, told, JSON, {}), partial(_sent, page, _HTML, _PAGE_HEADERS)
    return (
        opened("openapi", "/openapi.json", document_of, "This document.", answers={JSON: {"type": "object"}}),
        opened("docs", "/docs", page_of, "This document for people.", answers={_HTML: {"type": "string"}}),
    )


async def _sent(body: bytes, content_type: str, headers: dict[str, str], _context: HttpContext) -> Response:
    return Response(body, headers=headers, content_type=content_type)
