"""Bodies to requests without holding up the other responses.

Must not know: JSON names, what a request is.

A body of half a million messages takes seconds to parse. In a thread it takes turns with the event loop, but for the JSON
decoder, which lets nobody in between: a fifth of the time for messages and numbers. Bodies of several accounts take turns.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from quart import request

from layered_llm.transport.http.api_error import ApiError
from layered_llm.transport.http.connection import exchange_of
from layered_llm.transport.http.context import HttpContext
from layered_llm.transport.http.fair_work import FairWork

ParsedT = TypeVar("ParsedT")

SMALL_BODY_BYTES: Final = 2 << 10
"""At most 1 ms of parsing, which is less than everything else that a request costs: no turn is waited for."""
LARGE_BODY_BYTES: Final = 32 << 10
"""At most 20 ms of parsing (0.2 … 0.5 µs for each byte of a list of messages on one core of 2025; a text takes far less)."""


async def parsed_body(context: HttpContext, parse: Callable[[bytes], ParsedT]) -> ParsedT | ApiError:
    """What `parse` makes of the body of the request that is handled, when all of it is there and its turn has come."""
    exchange = exchange_of(request)
    body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    if exchange.body.refused is not None:
        return exchange.body.refused
    try:
        return await parsed(parse, body, context.fair_work, exchange.account)
    finally:
        exchange.body.release()


async def parsed(parse: Callable[[bytes], ParsedT], body: bytes, fair_work: FairWork, account: str) -> ParsedT:
    """`parse(body)`, in turn unless `body` is small, and in a thread when it is large."""
    if len(body) <= SMALL_BODY_BYTES:
        return parse(body)
    async with fair_work.turn(account, len(body)):
        if len(body) <= LARGE_BODY_BYTES:
            return parse(body)
        return await fair_work.in_thread(partial(parse, body))
