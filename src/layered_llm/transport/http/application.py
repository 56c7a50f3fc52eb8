"""The ASGI application: the routes of the endpoints, and what is the same for every response.

Must not know: which endpoints there are, how the engine is reached, which server runs the application.
"""

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

from quart import Response, request
from quart.wrappers import BaseRequestWebsocket
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import BaseConverter, MapAdapter

from layered_llm.domain.ports.engine import Engine
from layered_llm.transport.http.endpoints import all_endpoints
from layered_llm.transport.http.exchange import api_error
from layered_llm.transport.http.exchange.access_log import AccessLog
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.api_keys import Access, ApiKeys, Holder, refused
from layered_llm.transport.http.exchange.byte_budget import ByteBudget
from layered_llm.transport.http.exchange.connection import Exchange, OwningConnection, RefusedWebsocket, exchange_of
from layered_llm.transport.http.exchange.context import HttpContext
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.exchange.incoming_body import BodyRules
from layered_llm.transport.http.exchange.refusals import Refusals
from layered_llm.transport.http.exchange.replies import error_reply
from layered_llm.transport.http.exchange.request_checks import Asking, HeaderFields, fields_of, refused_body, refused_framing
from layered_llm.transport.http.exchange.settings import HttpSettings
from layered_llm.transport.http.hypercorn_server.listening import Listening
from layered_llm.transport.http.openapi.endpoint import Endpoint
from layered_llm.transport.http.openapi.pages import with_description

REQUEST_ID_HEADER: Final = "x-request-id"
_SANE_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_CODES: Final = {
    413: "request_entity_too_large",
    414: "request_uri_too_long",
    416: "requested_range_not_satisfiable",
    422: "unprocessable_entity",
}
"""Of the statuses that newer versions of Python have another name for: a client's code must not depend on it."""

logger = logging.getLogger(__name__)


class _Application(QuartTrio):
    """Finds routes by their paths alone: the framework fails at a Host that is no name, and at a query that is no text."""

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        if request is None:
            return None
        return self.url_map.bind("localhost", url_scheme=request.scheme, default_method=request.method, path_info=request.path)


class _AnyPath(BaseConverter):
    """The rest of a path as it is, where the framework's own takes none that begins with a slash: a model may be named so."""

    regex = ".+"
    part_isolating = False


def build_application(
    *,
    engine: Engine,
    settings: HttpSettings,
    keys: ApiKeys,
    listening: Listening,
    drain: Drain,
    wall_clock: Callable[[], float],
    new_hex_id: Callable[[], str],
    access_log: AccessLog | None = None,
    refusals: Refusals | None = None,
) -> QuartTrio:
    """The application without a lifespan of its own; wrap it in `LifespanApplication`.

    Args:
        listening: filled in by whoever binds the sockets.
        drain: begun by whoever learns that the server is to stop.
        wall_clock: Unix time in seconds.
        new_hex_id: a new random hexadecimal id at each call.
        access_log: given each request that is over.
        refusals: counts what is refused.
    """
    app = _Application("layered_llm", static_folder=None)
    budget = ByteBudget(settings.max_unfinished_body_bytes, settings.max_unfinished_body_bytes_per_client)
    app.asgi_http_class = partial(  # type: ignore[assignment]  # only called
        OwningConnection, BodyRules(budget, settings.retry_after_s, settings.body_timeout_s), access_log
    )
    app.asgi_websocket_class = RefusedWebsocket
    app.config["RESPONSE_TIMEOUT"] = None
    app.config["BODY_TIMEOUT"] = None
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.url_map.strict_slashes = False
    app.url_map.converters["path"] = _AnyPath
    # A redirect would lose the body of a POST, and name a host and a scheme that the client may not reach us by.
    app.url_map.merge_slashes = False
    context = HttpContext(
        engine=engine,
        settings=settings,
        keys=keys,
        listening=listening,
        drain=drain,
        wall_clock=wall_clock,
        new_hex_id=new_hex_id,
        refusals=refusals or Refusals(),
    )
    _add_hooks(app, context, _add_routes(app, context))
    app.register_error_handler(HTTPException, _on_http_exception)
    app.register_error_handler(Exception, _on_exception)
    return app


def _add_routes(app: QuartTrio, context: HttpContext) -> Mapping[str, Endpoint]:
    """The endpoints by the names of their routes."""
    table = with_description(all_endpoints(), version=context.settings.about.version, keys=context.keys)
    routes = {path: endpoint for endpoint in table for path in endpoint.paths}
    for path, endpoint in routes.items():
        app.add_url_rule(path, path, partial(endpoint.handler, context), methods=list(endpoint.methods))
    return routes


def _add_hooks(app: QuartTrio, context: HttpContext, routes: Mapping[str, Endpoint]) -> None:
    @app.before_request
    async def begin() -> Response | None:
        scope = cast("dict[str, Any]", request.scope)
        fields = fields_of(scope["headers"])
        asked = next(iter(fields[b"x-request-id"]), "")
        exchange = exchange_of(request)
        exchange.client_id = asked if _SANE_REQUEST_ID.fullmatch(asked) else None
        exchange.request_id = exchange.client_id or context.new_hex_id()
        if (misframed := refused_framing(scope["http_version"], fields)) is not None:
            return error_reply(misframed, {"Connection": "close"})
        error = context.settings.pages.refused(_asking(scope, fields), is_loopback=context.listening.is_loopback)
        if error is None and scope["method"] == "OPTIONS":
            return _no_content()
        endpoint = routes.get(request.endpoint or "")
        error = error or _refused(context, exchange, endpoint, fields)
        if error is not None:
            context.refusals.count(error)
            return error_reply(error)
        if endpoint is not None and endpoint.body is not None and (unread := refused_body(fields)) is not None:
            return error_reply(unread)
        exchange.body.admit(exchange.account)
        return None

    @app.after_request
    async def finish(response: Response) -> Response:
        response.headers[REQUEST_ID_HEADER] = exchange_of(request).request_id
        # An answer is one request's own, and what a server says of itself holds for the moment.
        response.headers["Cache-Control"] = "no-store"
        if context.settings.pages.allowed_origins:
            allowed = context.settings.pages.headers(
                request.headers.getlist("Origin"),
                request.headers.get("Access-Control-Request-Headers"),
                is_preflight=request.method == "OPTIONS",
            )
            response.headers.update(allowed)
        return response


def _asking(scope: dict[str, Any], fields: HeaderFields) -> Asking:
    # Of a target such as http://NAME/PATH the name counts, and not the one of the header (RFC 9112, section 3.2.2).
    target: str = scope["raw_path"].decode("latin-1")
    named = [] if target.startswith("/") or "://" not in target else [target.partition("://")[2].partition("/")[0]]
    return Asking(
        method=scope["method"],
        hosts=[*named, *fields[b"host"]],
        origins=fields[b"origin"],
        content_types=fields[b"content-type"],
    )


def _refused(context: HttpContext, exchange: Exchange, endpoint: Endpoint | None, fields: HeaderFields) -> ApiError | None:
    """Why the API key of a request does not open what it asks for, if so; its body is not read."""
    # What is no route needs a key as well, so that nobody without one learns what there is.
    access = Access.KEY if endpoint is None else endpoint.access
    holder = context.keys.holder(fields[b"authorization"], fields[b"x-api-key"])
    error = refused(access, holder, context.keys, context.listening)
    if error is None and isinstance(holder, Holder):
        exchange.identify(holder)
    return error


def _no_content() -> Response:
    response = Response("", status=HTTPStatus.NO_CONTENT)
    # A 204 must not have a length, RFC 9110, section 8.6.
    response.headers.remove("Content-Length")
    response.headers.remove("Content-Type")
    return response


async def _on_http_exception(error: HTTPException) -> Response | HTTPException:
    """JSON instead of the framework's HTML."""
    code = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
    if code < HTTPStatus.BAD_REQUEST:
        return error
    reply = error_reply(
        ApiError(
            status=code,
            type=api_error.INVALID_REQUEST if code < HTTPStatus.INTERNAL_SERVER_ERROR else api_error.SERVER_ERROR,
            message=_message(error, code),
            code=_CODES.get(code, HTTPStatus(code).name.lower()),
        )
    )
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        reply.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return reply


def _message(error: HTTPException, code: int) -> str:
    match code:
        case HTTPStatus.NOT_FOUND:
            return f"There is no {request.method} {request.path} on this server; GET /docs lists what there is."
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return f"{request.path} does not take {request.method}."
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return f"The body is larger than {request.max_content_length} bytes."
        case _:
            return error.description or HTTPStatus(code).phrase


async def _on_exception(error: Exception) -> Response:
    logger.error("request ended by an unexpected error", exc_info=error)
    return error_reply(api_error.INTERNAL_ERROR)
