"""One HTTP exchange: its reader and its handler, inside of the scope that owns all it opens.

Must not know: what a handler opens.

Invariants:
* The owner is closed before the exchange is left, by whatever way: it is opened around handler *and* send, and never in a
  response generator, which is not started, and so runs no `finally`, when the peer leaves while the headers are sent.
* Between noticing that the peer is gone and closing the owner there is no checkpoint.
* A disconnect that is reported after the last body message is the server's own end of the exchange, no abort: the handler
  is still inside of `send` then, where the server recycles or closes the connection, and must not be cancelled there
  (quart-trio 0.12 does, and so leaks connections).
"""

import contextlib
import socket
from typing import Any, Final, cast

import attrs
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, HTTPScope
from quart.wrappers import Request, Response
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection, TrioASGIWebsocketConnection

from layered_llm.transport.http.api_keys import ANYBODY, Holder
from layered_llm.transport.http.incoming_body import BodyRules, IncomingBody

SCOPE_KEY: Final = "layered_llm.exchange"
_NETWORK_BYTES: Final = 8
FINISH_GRACE_S: Final = 1.0
"""How long the final `send` may take after the disconnect; over HTTP/2 it would wait for ever when the peer is gone."""


@attrs.define(kw_only=True, eq=False)
class Exchange:
    """What a handler may use of the exchange that it serves."""

    owner: contextlib.ExitStack
    """Closes all that is entered into it when the exchange ends."""
    nursery: trio.Nursery
    """For tasks that live no longer than the exchange; it is cancelled as soon as the response is sent."""
    body: IncomingBody
    holder: Holder = ANYBODY
    """Whose API key it came with; set before there is a handler."""
    client_id: str | None = None
    """The request id that the client named in a header."""
    peer: str = ""
    """The network that it came from, none for a Unix socket."""

    @property
    def account(self) -> str:
        """By which its turns and its bytes are counted: the API key that it came with, else the address."""
        return f"key {self.tenant}" if self.tenant else f"peer {self.peer}"

    @property
    def tenant(self) -> str:
        return self.holder.tenant


def exchange_of(request: Request) -> Exchange:
    """The exchange that `request` belongs to."""
    exchange = cast("dict[str, Any]", request.scope)[SCOPE_KEY]
    if not isinstance(exchange, Exchange):
        raise TypeError(f"the scope's exchange is a {type(exchange).__name__}")
    return exchange


class OwningConnection(TrioASGIHTTPConnection):
    """Runs one exchange; used through `QuartTrio.asgi_http_class`, with what its bodies share."""

    def __init__(self, rules: BodyRules, app: QuartTrio, scope: HTTPScope) -> None:
        super().__init__(app, scope)
        self._rules = rules

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        request = self._create_request_from_scope(send)
        sent = _SentMessages(send)
        with contextlib.ExitStack() as owner:
            async with trio.open_nursery() as nursery:
                body = IncomingBody(request.body, self._rules)
                owner.callback(body.release)
                exchange = Exchange(owner=owner, nursery=nursery, body=body, peer=_network_of(self.scope.get("client")))
                cast("dict[str, Any]", self.scope)[SCOPE_KEY] = exchange
                nursery.start_soon(self._read, exchange, request, receive, sent)
                nursery.start_soon(self._respond, exchange, request, sent)

    async def _read(self, exchange: Exchange, request: Request, receive: ASGIReceiveCallable, sent: "_SentMessages") -> None:
        """Feeds the body to the request until the peer is gone."""
        await exchange.body.fill(receive)
        if sent.is_final:
            exchange.nursery.cancel_scope.deadline = trio.current_time() + FINISH_GRACE_S
        else:
            # Before the owner is closed, which wakes the handler: it would answer that its request was lost.
            exchange.nursery.cancel_scope.cancel()
        exchange.owner.close()

    async def _respond(self, exchange: Exchange, request: Request, sent: "_SentMessages") -> None:
        response = await self.app.handle_request(request)
        exchange.body.release()
        exchange.body.admit(exchange.account)
        if response.status_code >= 400:
            exchange.owner.close()
        await self._send_response(cast("ASGISendCallable", sent), cast("Response", response))
        exchange.nursery.cancel_scope.cancel()


def _network_of(client: tuple[str, int] | None) -> str:
    """The peer's address, of IPv6 the network: whoever has one has all addresses of it. Nothing for a Unix socket."""
    if client is None:
        return ""
    address = client[0].partition("%")[0]
    if ":" not in address or "." in address:
        return address
    return socket.inet_pton(socket.AF_INET6, address)[:_NETWORK_BYTES].hex()


class RefusedWebsocket(TrioASGIWebsocketConnection):
    """Used through `QuartTrio.asgi_websocket_class`: there is none here; the server makes a 403 of the close."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": None})


class _SentMessages:
    """`send`, with a note whether the last message of the response was handed to it."""

    def __init__(self, send: ASGISendCallable) -> None:
        self.is_final = False
        self._send = send

    async def __call__(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_final = True
        await self._send(message)
