"""Who may use the server, by the names of its API keys, and who may ask for what: the class of an endpoint against the key that
a request has and where the server listens.

Must not know: where keys come from, which endpoints there are.

Invariants: of a key only its SHA-256 is kept, so that nothing that holds or shows this table can tell one. Every digest is
compared with every presented key, each in constant time, so that neither the time of an answer nor its order tells anything
about a key.

What shows or changes others' things is open to an admin key, and else only where no key was configured and only
programs on this machine reach the server. The peer's address decides nothing; see `listening`.
"""

import enum
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final, Self, assert_never

import attrs

from layered_llm.transport.http.exchange import api_error
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.hypercorn_server.listening import Listening

_SCHEME: Final = "bearer"


@attrs.frozen(kw_only=True)
class KnownKey:
    """Who presents the key with this digest."""

    name: str
    digest: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, name: str, key: str) -> Self:
        return cls(name=name, digest=_digest(key))


@attrs.frozen(kw_only=True)
class Holder:
    """Whose key a request has; nobody's in particular where no key is needed."""

    tenant: str = ""
    is_admin: bool = False


ANYBODY: Final = Holder()


@attrs.frozen
class ApiKeys:
    """The keys that open the server; without any it is open to everybody, and whatever key a client has is ignored."""

    known: tuple[KnownKey, ...] = ()
    admins: tuple[KnownKey, ...] = ()
    """These open everything."""

    @classmethod
    def of(cls, named: Iterable[tuple[str, str]], admins: Iterable[tuple[str, str]] = ()) -> Self:
        """From pairs of name and key; several keys may have one name."""
        return cls(tuple(KnownKey.of(name, key) for name, key in named), tuple(KnownKey.of(name, key) for name, key in admins))

    @property
    def are_needed(self) -> bool:
        """Whether what is asked for oneself needs one."""
        return bool(self.known)

    @property
    def have_admin(self) -> bool:
        return bool(self.admins)

    def holder(self, authorizations: Iterable[str], api_keys: Iterable[str] = ()) -> Holder | ApiError:
        """Whose key is in a request's `Authorization` (RFC 6750) or `X-Api-Key` headers, or why it opens nothing."""
        if not self.known and not self.admins:
            return ANYBODY
        presented = {*_bearers(authorizations), *(key.strip() for key in api_keys)} - {""}
        if len(presented) > 1:
            return api_error.TWO_API_KEYS
        digests = [_digest(key) for key in presented]
        found = [
            Holder(tenant=key.name, is_admin=is_admin)
            for digest in digests
            for is_admin, group in ((False, self.known), (True, self.admins))
            for key in group
            if hmac.compare_digest(key.digest, digest)
        ]
        if found:
            return found[0]
        if not self.are_needed:
            return ANYBODY
        return api_error.WRONG_API_KEY if presented else api_error.NO_API_KEY


def _bearers(authorizations: Iterable[str]) -> Iterable[str]:
    """The keys of those that are of this scheme; another one is for somebody else, as a proxy on the way."""
    for authorization in authorizations:
        scheme, _, presented = authorization.strip().partition(" ")
        if scheme.lower() == _SCHEME:
            yield presented.strip()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


@enum.unique
class Access(enum.Enum):
    """The class of an endpoint."""

    OPEN = enum.auto()
    """Needs no key: load balancers have none, nor browsers, and Prometheus' figures name nobody."""
    KEY = enum.auto()
    """Needs a key where there are any, and shows and changes nothing but what was asked with keys of the same name."""
    ADMIN = enum.auto()
    """Shows or changes others' things."""


def refused(access: Access, holder: Holder | ApiError, keys: ApiKeys, listening: Listening) -> ApiError | None:
    """Why a request is not answered, if so."""
    match access:
        case Access.OPEN:
            return None
        case _ if isinstance(holder, ApiError):
            return holder
        case Access.KEY:
            return None
        case Access.ADMIN:
            return _not_admin(holder, keys, listening)
        case _ as unreachable:
            assert_never(unreachable)


def _not_admin(holder: Holder, keys: ApiKeys, listening: Listening) -> ApiError | None:
    if holder.is_admin or (listening.is_loopback and not keys.are_needed and not keys.have_admin):
        return None
    if not keys.have_admin:
        return api_error.no_admin_key(is_guarded=keys.are_needed)
    return api_error.NOT_THE_ADMIN_KEY if holder.tenant else api_error.MISSING_ADMIN_KEY
