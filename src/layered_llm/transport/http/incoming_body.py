"""The body of one request as it comes in: no more bytes than there is room for, and no slower than is worth the wait.

Must not know: routes, what a body says, connections.

Bytes count from when they come until the body is parsed, or dropped because its request was answered without it. A body that
brings less than 16 KB/s for 10 s is ended by a 408: else a few bytes now and then would hold what came before for ever.
"""

from collections.abc import Callable
from typing import Final, assert_never

import attrs
import trio
from hypercorn.typing import ASGIReceiveCallable
from quart.wrappers.request import Body

from layered_llm.transport.http import api_error
from layered_llm.transport.http.api_error import ApiError
from layered_llm.transport.http.byte_budget import ByteBudget, ByteHold, Over

SLOWEST_BYTES_PER_S: Final = 16_000
PATIENCE_S: Final = 10.0
_BYTES_IN_TIME: Final = int(SLOWEST_BYTES_PER_S * PATIENCE_S)


@attrs.frozen
class BodyRules:
    """What all bodies of this process share."""

    budget: ByteBudget
    retry_after_s: int

    def no_room(self, over: Over) -> ApiError:
        """The error of a body that does not fit beside the others."""
        match over:
            case Over.ACCOUNT:
                return api_error.too_many_bytes(
                    f"The bodies that this client sends at once exceed {self.budget.account_bytes} bytes.", self.retry_after_s
                )
            case Over.PROCESS:
                return api_error.no_memory("The server has no room for another request body.", self.retry_after_s)
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
    refused: ApiError | None = attrs.field(init=False, default=None)
    """Why there is no body, known when the framework says that it is complete."""

    def admit(self, account: str) -> None:
        """It is known whose it is; nothing is taken in before. Harmless when repeated."""
        if self._hold is None:
            self._hold = self._rules.budget.open(account)
            self._start_reader()

    async def fill(self, receive: ASGIReceiveCallable) -> None:
        """Takes the body in; returns when the peer is gone, or the exchange over."""
        with trio.CancelScope(deadline=trio.current_time() + PATIENCE_S) as scope:
            missing = _BYTES_IN_TIME
            while (message := await receive())["type"] == "http.request":
                data = message.get("body", b"")
                self._append(data)
                missing -= len(data)
                if not message.get("more_body", False):
                    self._body.set_complete()
                    break
                if missing <= 0:
                    missing, scope.deadline = _BYTES_IN_TIME, trio.current_time() + PATIENCE_S
            else:
                return
        if scope.cancelled_caught:
            self._refuse(api_error.slow_body(SLOWEST_BYTES_PER_S, PATIENCE_S))
        while (await receive())["type"] == "http.request":
            pass

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
            self.refused = why
            self.release()
            self._body.set_complete()
