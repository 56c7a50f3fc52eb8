"""Which requests are refused for their header fields: how they are put into bytes, and whether their bodies may be JSON.

Must not know: routes, what is in a body, connections.

A request with two lengths may be two requests to a proxy before this server (request smuggling): it is refused, and its
connection, on which nobody knows where the next one begins, is closed (RFC 9112, section 6.1).

Many clients send no media type, and curl says that of a form: only a body that is surely no JSON is refused (RFC 9110, section
15.5.16). One that is compressed cannot be read.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from layered_llm.transport.http.exchange.api_error import ApiError, bad_request, error_of
from layered_llm.transport.http.hypercorn_server.listening import is_loopback_address

ANY: Final = "*"
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/?#\s,]+)(?::(\d{1,5}))?")
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_OWN_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The most usual ones; all addresses of loopback are taken."""
_SHOWN_CHARS: Final = 100


@attrs.frozen(kw_only=True)
class Asking:
    """What a request says of where it comes from and what it goes to; header fields as often as they are there."""

    method: str
    hosts: Sequence[str]
    """Of the Host fields, and of a target that names one itself. An empty one names nobody, as one that is not there."""
    origins: Sequence[str]
    content_types: Sequence[str]


@attrs.frozen(kw_only=True)
class PageRules:
    """Whose pages may use the server: its own, and those that the operator named."""

    allowed_origins: frozenset[str] = frozenset()
    """In lower case; `ANY` for all."""
    allowed_hosts: frozenset[str] = frozenset()
    """Names, in lower case and without a port, that the server goes by beside those of loopback; `ANY` for all."""

    def refused(self, asking: Asking, *, is_loopback: bool) -> ApiError | None:
        """Why the request is not answered, if so."""
        if is_loopback:
            for host in asking.hosts:
                if not self._is_own_name(host):
                    return error_of("host_not_allowed", _wrong_host(host))
            for origin in asking.origins:
                if not (self._is_allowed(origin) or _is_own(origin, asking.hosts)):
                    return error_of("origin_not_allowed", _wrong_origin(origin))
        if asking.origins and asking.method not in _READING and not _are_json(asking.content_types):
            message = "A request with an Origin must have a body of the type application/json."
            return error_of("unsupported_media_type", message)
        return None

    def headers(self, origins: Sequence[str], requested_headers: str | None, *, is_preflight: bool) -> Mapping[str, str]:
        """The headers by which a page may read the answer; none without a setting.

        `requested_headers` are those of a preflight's Access-Control-Request-Headers.
        """
        if not self.allowed_origins:
            return {}
        shared = {} if ANY in self.allowed_origins else {"Vary": "Origin"}
        if len(origins) != 1 or not self._is_allowed(origins[0]):
            return shared
        granted = {
            **shared,
            "Access-Control-Allow-Origin": ANY if ANY in self.allowed_origins else origins[0],
            "Access-Control-Expose-Headers": "*",
        }
        if is_preflight:
            granted |= {
                "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
                "Access-Control-Allow-Headers": requested_headers or "authorization, content-type",
                "Access-Control-Max-Age": "86400",
            }
        return granted

    def _is_allowed(self, origin: str) -> bool:
        return not self.allowed_origins.isdisjoint({ANY, origin.lower()})

    def _is_own_name(self, host: str) -> bool:
        if not host or ANY in self.allowed_hosts:
            return True
        parts = _AUTHORITY.fullmatch(host.lower())
        if parts is None:
            return False
        name = parts[1].removesuffix(".")
        return (
            name in _OWN_NAMES
            or name.endswith(".localhost")
            or is_loopback_address(name.removeprefix("[").removesuffix("]"))
            or name in self.allowed_hosts
        )


def _is_own(origin: str, hosts: Iterable[str]) -> bool:
    """Whether it is of the address that the request went to."""
    scheme, separator, authority = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    own = _AUTHORITY.fullmatch(authority)
    if not separator or port is None or own is None:
        return False
    return any(
        asked is not None and (own[1], own[2] or port) == (asked[1], asked[2] or port)
        for asked in (_AUTHORITY.fullmatch(host.lower()) for host in hosts)
    )


def _are_json(content_types: Sequence[str]) -> bool:
    return bool(content_types) and all(each.partition(";")[0].strip().lower() == "application/json" for each in content_types)


def _wrong_host(host: str) -> str:
    return (
        f"This server listens on this machine alone, and {host[:_SHOWN_CHARS]!r} is not a name of it; "
        "--allowed-host NAME has it answer to another one."
    )


def _wrong_origin(origin: str) -> str:
    return (
        f"Pages of {origin[:_SHOWN_CHARS]!r} may not use this server, which listens on this machine alone; "
        "--allowed-origin ORIGIN lets them."
    )


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
