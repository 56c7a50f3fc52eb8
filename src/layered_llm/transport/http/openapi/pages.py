"""`/openapi.json` and `/docs`, made once from the table of endpoints, themselves included.

Must not know: which endpoints there are.

The page needs nothing but this server: it is one file, fetches the document beside it, and shows that.
"""

from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import Final

import attrs
from quart import Response

from layered_llm.transport.http import sse
from layered_llm.transport.http.context import HttpContext
from layered_llm.transport.http.openapi.components import COMPONENTS
from layered_llm.transport.http.openapi.document import document
from layered_llm.transport.http.openapi.endpoint import JSON, Endpoint

_TITLE: Final = "layered_llm"
_HTML: Final = "text/html; charset=utf-8"
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
    "Referrer-Policy": "no-referrer",
}


def with_description(endpoints: Sequence[Endpoint], *, version: str, needs_key: bool) -> tuple[Endpoint, ...]:
    """`endpoints` and the two that describe them all."""
    own = (
        Endpoint(
            name="openapi",
            path="/openapi.json",
            handler=_unanswered,
            summary="This document.",
            tag="server",
            is_open=True,
            answers={JSON: {"type": "object"}},
        ),
        Endpoint(
            name="docs",
            path="/docs",
            handler=_unanswered,
            summary="This document for people.",
            tag="server",
            is_open=True,
            answers={_HTML: {"type": "string"}},
        ),
    )
    told = document((*endpoints, *own), dict(COMPONENTS), title=_TITLE, version=version, needs_key=needs_key)
    page = files("layered_llm.transport.http.openapi").joinpath("docs.html").read_bytes()
    handlers = (partial(_sent, sse.to_json(told), JSON, {}), partial(_sent, page, _HTML, _PAGE_HEADERS))
    return (*endpoints, *(attrs.evolve(row, handler=handler) for row, handler in zip(own, handlers, strict=True)))


async def _sent(body: bytes, content_type: str, headers: dict[str, str], _context: HttpContext) -> Response:
    return Response(body, headers=headers, content_type=content_type)


async def _unanswered(_context: HttpContext) -> Response:
    raise NotImplementedError
