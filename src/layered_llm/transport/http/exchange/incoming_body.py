"""The body of one request as it comes in and is parsed: no more bytes than there is room for, no slower than is worth the wait,
and without holding up the other responses.

Must not know: routes, what a body says, connections.

Bytes count from when they come until the body is parsed, or dropped because its request was answered without it. A body that
brings less than 16 KB/s for 10 s is ended by a 408: else a few bytes now and then would hold what came before for ever.

A body of half a million messages takes seconds to parse. In a thread it takes turns with the event loop, but for the JSON
decoder, which lets nobody in between: a fifth of the time for messages and numbers. Bodies of several accounts take turns.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar, assert_never

import attrs
import trio
from hypercorn.typing import ASGIReceiveCallable
from quart.wrappers.request import Body

from layered_llm.transport.http.exchange.api_error import ApiError, error_of
from layered_llm.transport.http.exchange.byte_budget import ByteBudget, ByteHold, Over
from layered_llm.transport.http.exchange.fair_work import FairWork

ParsedT = TypeVar("ParsedT")

SMALL_BODY_BYTES: Final = 2 << 10
"""At most 1 ms of parsing, which is less than everything else that a request costs: no turn is waited for."""
LARGE_BODY_BYTES: Final = 32 << 10
"""At most 20 ms of parsing (0.2 … 0.5 µs for each byte of a list of messages on one core of 2025; a text takes far less)."""
SLOWEST_BYTES_PER_S: Final = 16_000
PATIENCE_S: Final = 10.0
_BYTES_IN_TIME: Final = int(SLOWEST_BYTES_PER_S * PATIENCE_S)
_SLOW: Final = error_of("slow_body", f"The body came slower than {SLOWEST_BYTES_PER_S} bytes per second for {PATIENCE_S:g} s.")


@attrs.frozen
class BodyRules:
    """What all bodies of this process share."""

    budget: ByteBudget
    retry_after_s: int
    timeout_s: float
    """How long a client may take to send one, however fast it comes."""

    def no_room(self, over: Over) -> ApiError:
        """The error of a body that does not fit beside the others."""
        match over:
            case Over.ACCOUNT:
                message = f"The bodies that this client sends at once exceed {self.budget.account_bytes} bytes."
                return error_of("too_many_bytes", message, retry_after_s=self.retry_after_s)
            case Over.PROCESS:
                message = "The server has no room for another request body."
                return error_of("server_full", message, retry_after_s=self.retry_after_s)
            case _ as unreachable:
                assert_never(unreachable)


@attrs.define(eq=False)
class IncomingBody:
    """Filled by the exchange's reader, waited for by its handler."""

    _body: Body
    _rules: BodyRules
    _start_reader: Callable[[], None]
    """Has somebody call `fill`; called once it is known whose body it is."""
    _hold: ByteHold | None = attrs.field(init=False, default=None)
    _is_wanted: bool = attrs.field(init=False, default=True)
    _refused: ApiError | None = attrs.field(init=False, default=None)
    """Why there is no body, known when the framework says that it is complete."""

    def admit(self, account: str) -> None:
        """It is known whose it is; nothing is taken in before. Harmless when repeated."""
        if self._hold is None:
            self._hold = self._rules.budget.open(account)
            self._start_reader()

    async def fill(self, receive: ASGIReceiveCallable) -> None:
        """Takes the body in; returns when the peer is gone, or the exchange over."""
        began_s = trio.current_time()
        ends_s = began_s + self._rules.timeout_s
        with trio.CancelScope(deadline=min(began_s + PATIENCE_S, ends_s)) as scope:
            missing = _BYTES_IN_TIME
            while (message := await receive())["type"] == "http.request":
                data = message.get("body", b"")
                self._append(data)
                missing -= len(data)
                if not message.get("more_body", False):
                    self._body.set_complete()
                    break
                if missing <= 0:
                    missing, scope.deadline = _BYTES_IN_TIME, min(trio.current_time() + PATIENCE_S, ends_s)
            else:
                return
        if scope.cancelled_caught:
            is_late = trio.current_time() >= ends_s
            late = error_of("request_timeout", f"The body was not complete after {self._rules.timeout_s:g} s.")
            self._refuse(late if is_late else _SLOW)
        while (await receive())["type"] == "http.request":
            pass

    async def parsed(self, parse: Callable[[bytes], ParsedT], fair_work: FairWork, account: str) -> ParsedT | ApiError:
        """What `parse` makes of it, when all of it is there and its turn has come."""
        body = await self._body
        self._body.clear()
        if self._refused is not None:
            return self._refused
        try:
            return parse(body) if len(body) <= SMALL_BODY_BYTES else await parsed(parse, body, fair_work, account)
        finally:
            self.release()

    def release(self) -> None:
        """The bytes are not needed any more, nor what still comes."""
        self._is_wanted = False
        self._body.clear()
        if self._hold is not None:
            self._hold.release()

    def _append(self, data: bytes) -> None:
        if not self._is_wanted or self._hold is None:
            return
        over = self._hold.take(len(data))
        if over is None:
            self._body.append(data)
        else:
            self._refuse(self._rules.no_room(over))

    def _refuse(self, why: ApiError) -> None:
        if self._is_wanted:
            self._refused = why
            self.release()
            self._body.set_complete()


async def parsed(parse: Callable[[bytes], ParsedT], body: bytes, fair_work: FairWork, account: str) -> ParsedT:
    """`parse(body)` in turn, and in a thread when it is large."""
    async with fair_work.turn(account, len(body)):
        if len(body) <= LARGE_BODY_BYTES:
            return parse(body)
        return await fair_work.in_thread(partial(parse, body))
