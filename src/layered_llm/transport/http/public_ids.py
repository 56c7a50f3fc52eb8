"""The ids that clients see, made from request ids and taken apart again.

Must not know: what a request is, how its id is composed.

Invariant: `request_of(public_id(prefix, request)) == request`, so that an id read from a response names its request.
"""

import re
from typing import Final

from layered_llm.domain.ids import RequestId

CHAT_PREFIX: Final = "chatcmpl"
COMPLETION_PREFIX: Final = "cmpl"
NATIVE_PREFIX: Final = "gen"

_PUBLIC_ID: Final = re.compile(rf"(?:{CHAT_PREFIX}|{COMPLETION_PREFIX}|{NATIVE_PREFIX})-([0-9a-f]{{16}})")


def public_id(prefix: str, request: RequestId) -> str:
    """`prefix`, a hyphen, and the id in 16 hexadecimal digits."""
    return f"{prefix}-{request:016x}"


def request_of(public: str) -> RequestId | None:
    """The request that `public` names; None when it is no id of ours."""
    match = _PUBLIC_ID.fullmatch(public)
    return RequestId(int(match[1], 16)) if match else None
