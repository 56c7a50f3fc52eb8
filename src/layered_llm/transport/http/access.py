"""Who may ask for what: the class of an endpoint against the key that a request has and where the server listens.

Must not know: which endpoints there are, headers, how a key is compared.

Invariant: what shows or changes others' things is open to an admin key, and else only where no key was configured and only
programs on this machine reach the server. The peer's address decides nothing; see `listening`.
"""

import enum
from typing import assert_never

from layered_llm.transport.http import api_error
from layered_llm.transport.http.api_error import ApiError
from layered_llm.transport.http.api_keys import ApiKeys, Holder
from layered_llm.transport.http.listening import Listening


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
    if holder.is_admin or (keys.are_none and listening.is_loopback):
        return None
    if not keys.have_admin:
        return api_error.no_admin_key(is_guarded=keys.are_needed)
    return api_error.NOT_THE_ADMIN_KEY if holder.tenant else api_error.MISSING_ADMIN_KEY
