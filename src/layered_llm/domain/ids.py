"""Identifiers, as integers that the type checker keeps apart.

Must not know: how an id is written on the wire or in HTTP.

A request id carries the API process that issued it, so that every reply can be routed by the id alone and two API processes
never clash. Only the functions of this file take ids apart or put them together.
"""

from typing import Final, NewType

ApiId = NewType("ApiId", int)
"""One incarnation of one API process (or of one embedding program): drawn at random at its start, 1 … 2**30 - 1."""

RequestId = NewType("RequestId", int)
"""One client request, with all its choices; unique for the life of the engine."""

TextId = NewType("TextId", int)
"""Index of a text worker, 0 … num_tokenizers - 1."""

StepId = NewType("StepId", int)
"""Number of a step, counted from 1 by the scheduler."""

SlotId = NewType("SlotId", int)
"""Place of one running choice in the runtime's tables; reused after it was retired."""

PageId = NewType("PageId", int)
"""One page of the KV cache."""

PathId = NewType("PathId", int)
"""Where what is said of a request goes: to its API process, for one incarnation of requests."""

_API_BITS: Final = 30
API_ID_LIMIT: Final = 1 << _API_BITS
_COUNTER_BITS: Final = 32


def compose_request_id(api: ApiId, counter: int) -> RequestId:
    """The id of the `counter`-th request of `api`. Raises ValueError when either is out of range."""
    if not 0 < api < API_ID_LIMIT or not 0 <= counter < 1 << _COUNTER_BITS:
        raise ValueError(f"request id parts out of range: api={api} counter={counter}")
    return RequestId((api << _COUNTER_BITS) | counter)


def api_of(request: RequestId) -> ApiId:
    """The API process that issued `request`."""
    return ApiId(request >> _COUNTER_BITS)


def compose_path_id(api: ApiId, incarnation: int) -> PathId:
    """One number, since it is looked up for every token."""
    return PathId((incarnation << _API_BITS) | api)


def path_parts(path: PathId) -> tuple[ApiId, int]:
    """The API process and the incarnation."""
    return ApiId(path & (API_ID_LIMIT - 1)), path >> _API_BITS
