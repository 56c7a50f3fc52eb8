"""The OpenAPI 3.1 document of a table of endpoints.

Must not know: which endpoints there are, HTTP.

Source: OpenAPI Specification 3.1.1.
"""

import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Final

from layered_llm.transport.http.exchange.api_keys import Access
from layered_llm.transport.http.exchange.json_schema import Json, ref
from layered_llm.transport.http.openapi.endpoint import BODY_ERRORS, JSON, PREFIX, Endpoint

_IN_HEADERS: Final[dict[str, Json]] = {
    "": {"type": "http", "scheme": "bearer"},
    "_header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}
"""Where a key may be, by the ends of the schemes' names."""
_SCHEMES: Final = {Access.KEY: "key", Access.ADMIN: "admin"}
_TEXTS: Final = {"key": "An API key.", "admin": "The admin key; without any key where the server listens on loopback alone."}
_VARIABLE: Final = re.compile(r"<(?:path:)?(\w+)>")


def document(
    endpoints: Iterable[Endpoint],
    components: dict[str, Json],
    *,
    title: str,
    version: str,
    needs_key: bool,
    has_admin_key: bool,
) -> Json:
    """The whole document, ready to be written as JSON."""
    schemes = {Access.KEY: _SCHEMES[Access.KEY]} if needs_key else {}
    schemes |= {Access.ADMIN: _SCHEMES[Access.ADMIN]} if needs_key or has_admin_key else {}
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        for path in endpoint.paths:
            operations = _operations(endpoint, path, scheme=schemes.get(endpoint.access))
            paths[_VARIABLE.sub(r"{\1}", path)] = dict(operations)
    described = {
        f"{name}{end}": {**place, "description": _TEXTS[name]}
        for name in schemes.values()
        for end, place in _IN_HEADERS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": described},
    }


def _operations(endpoint: Endpoint, path: str, *, scheme: str | None) -> Iterator[tuple[str, Json]]:
    for method in endpoint.methods:
        operation: Json = {
            "operationId": _operation_id(endpoint, path, method),
            "summary": endpoint.summary,
            "tags": [endpoint.tag],
            "responses": _responses(endpoint, needs_key=scheme is not None),
        }
        variables = _VARIABLE.findall(path)
        if variables:
            operation["parameters"] = [_parameter(name) for name in variables]
        if endpoint.body is not None:
            operation["requestBody"] = {"required": True, "content": {JSON: {"schema": endpoint.body}}}
        if scheme is not None:
            operation["security"] = [{f"{scheme}{end}": []} for end in _IN_HEADERS]
        yield method.lower(), operation


def _operation_id(endpoint: Endpoint, path: str, method: str) -> str:
    """Unique in the document; the endpoint's name under its first path and method."""
    parts = [endpoint.name]
    if method != endpoint.methods[0]:
        parts.append(method.lower())
    if endpoint.is_aliased and not path.startswith(PREFIX):
        parts.append("alias")
    return "_".join(parts)


def _parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _responses(endpoint: Endpoint, *, needs_key: bool) -> Json:
    answered: Json = {str(HTTPStatus.OK.value): _response(HTTPStatus.OK, dict(endpoint.answers))}
    for status, body in endpoint.bodies.items():
        answered[str(status)] = _response(status, {JSON: body})
    failed = {
        *endpoint.errors,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        *(BODY_ERRORS if endpoint.body is not None else ()),
    }
    failed |= {HTTPStatus.UNAUTHORIZED} if needs_key else set()
    for status in sorted(failed - endpoint.bodies.keys()):
        answered[str(int(status))] = _response(status, {JSON: ref("Error")})
    return answered


def _response(status: int, bodies: dict[str, Json]) -> Json:
    content = {media_type: {"schema": schema} for media_type, schema in bodies.items()}
    return {"description": HTTPStatus(status).phrase, "content": content}
