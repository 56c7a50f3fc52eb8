"""The ids that clients see, made from request ids and taken apart again.

Must not know: what a request is, how its id is composed.

Invariant: an id read from a response names its request: `request_of(public_id(prefix, request)) == request`, and where the
client called it, `name in names_of(public_id(prefix, request, name))`.
"""

import re
from typing import Final

from layered_llm.domain.ids import RequestId

CHAT_PREFIX: Final = "chatcmpl"
COMPLETION_PREFIX: Final = "cmpl"
NATIVE_PREFIX: Final = "gen"

_PUBLIC_ID: Final = re.compile(rf"(?:{CHAT_PREFIX}|{COMPLETION_PREFIX}|{NATIVE_PREFIX})-([0-9a-f]{{16}})")


def public_id(prefix: str, request: RequestId, name: str | None = None) -> str:
    """`prefix`, a hyphen, and what the client calls the request, else the id in 16 hexadecimal digits."""
    return f"{prefix}-{request:016x}" if name is None else f"{prefix}-{name}"


def request_of(public: str) -> RequestId | None:
    """The request that `public` names; None when it is no id of ours."""
    match = _PUBLIC_ID.fullmatch(public)
    return RequestId(int(match[1], 16)) if match else None


def names_of(public: str) -> tuple[str, ...]:
    """What a client may have called the request that `public` names: that itself, or what stands behind its prefix."""
    prefix, _, name = public.partition("-")
    return (public, name) if prefix in {CHAT_PREFIX, COMPLETION_PREFIX} and name else (public,)
