"""Who may use the server: the names behind its API keys.

Must not know: where keys come from, which routes need one.

Invariants: of a key only its SHA-256 is kept, so that nothing that holds or shows this table can tell one. Every digest is
compared with every presented key, each in constant time, so that neither the time of an answer nor its order tells anything
about a key.
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final, Self

import attrs

from layered_llm.transport.http import api_error
from layered_llm.transport.http.api_error import ApiError

_SCHEME: Final = "bearer"


@attrs.frozen(kw_only=True)
class KnownKey:
    """Who presents the key with this digest."""

    name: str
    digest: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, name: str, key: str) -> Self:
        return cls(name=name, digest=_digest(key))


@attrs.frozen
class ApiKeys:
    """The keys that open the server; without any it is open to everybody, and whatever key a client has is ignored."""

    known: tuple[KnownKey, ...] = ()

    @classmethod
    def of(cls, named: Iterable[tuple[str, str]]) -> Self:
        """From pairs of name and key; several keys may have one name."""
        return cls(tuple(KnownKey.of(name, key) for name, key in named))

    @property
    def are_needed(self) -> bool:
        return bool(self.known)

    def tenant(self, authorization: str | None) -> str | ApiError:
        """The name behind an `Authorization` header (RFC 6750), or why it opens nothing; "" where no key is needed."""
        if not self.are_needed:
            return ""
        scheme, _, presented = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME or not presented.strip():
            return api_error.no_api_key()
        digest = _digest(presented.strip())
        names = [key.name for key in self.known if hmac.compare_digest(key.digest, digest)]
        return names[0] if names else api_error.wrong_api_key()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
