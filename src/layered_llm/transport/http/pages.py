"""Which requests are refused since somebody else's web page may have sent them, and whose pages may read the answers (CORS).

Must not know: routes, keys, bodies.

A page that a user visits can reach what the user's machine reaches. On loopback nothing else keeps it out, so there a page of
another origin is refused, and so is a name that is not this machine's: a page may point its own name here (DNS rebinding), and
then every answer is of its own origin. Elsewhere browsers ask before they send JSON across origins, so that a body that says it
is JSON is proof enough. What is no browser sends no Origin, and is free in all of this.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from layered_llm.transport.http.api_error import ApiError, error_of
from layered_llm.transport.http.listening import is_loopback_address

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
