"""Bodies to requests without holding up the other responses.

Must not know: JSON names, what a request is.

A body of half a million messages takes seconds to parse. In a thread it takes turns with the event loop, but for the JSON
decoder, which lets nobody in between: a fifth of the time for messages and numbers, most of it for millions of empty lists.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

ParsedT = TypeVar("ParsedT")

LARGE_BODY_BYTES: Final = 32 << 10
"""At most 10 ms of parsing (0.2 … 0.3 µs for each byte of a list of numbers on one core of 2025; a text takes far less)."""


async def parsed(parse: Callable[[bytes], ParsedT], body: bytes, limiter: trio.CapacityLimiter) -> ParsedT:
    """`parse(body)`, in a thread when `body` is large; `limiter` bounds how many of these there are.

    When cancelled the result is dropped, and the thread keeps its place in `limiter` until it has ended.
    """
    if len(body) <= LARGE_BODY_BYTES:
        return parse(body)
    return await trio.to_thread.run_sync(parse, body, limiter=limiter, abandon_on_cancel=True)
