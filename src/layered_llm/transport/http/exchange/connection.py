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
from functools import partial
from typing import Any, Final, cast

import attrs
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, HTTPScope
from quart.wrappers import Request, Response
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection, TrioASGIWebsocketConnection

from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.ports.engine import EngineStream
from layered_llm.transport.http.exchange.access_log import AccessEntry, AccessLog
from layered_llm.transport.http.exchange.api_keys import ANYBODY, Holder
from layered_llm.transport.http.exchange.incoming_body import BodyRules, IncomingBody
from layered_llm.transport.http.exchange.public_ids import NATIVE_PREFIX, public_id
from layered_llm.transport.http.hypercorn_server.options import SLOW_READER

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
    """Whose API key it came with; known before there is a handler."""
    client_id: str | None = None
    """The request id that the client named in a header."""
    account: str
    """By which its turns and its bytes are counted: the API key that it came with, else the network."""
    request_id: str = ""
    """That of the answer's X-Request-Id."""
    streams: list[EngineStream] = attrs.field(factory=list)
    """Every request to the engine that the handler opened."""
    queued_s: float | None = None
    """When the engine had queued all of them, on trio's clock."""
    id_prefix: str = NATIVE_PREFIX
    """Of the ids that the client sees for these."""

    def identify(self, holder: Holder) -> None:
        """It is known whose API key it came with."""
        self.holder = holder
        if holder.tenant:
            self.account = f"key {holder.tenant}"


def exchange_of(request: Request) -> Exchange:
    """The exchange that `request` belongs to."""
    exchange = cast("dict[str, Any]", request.scope)[SCOPE_KEY]
    if not isinstance(exchange, Exchange):
        raise TypeError(f"the scope's exchange is a {type(exchange).__name__}")
    return exchange


class OwningConnection(TrioASGIHTTPConnection):
    """Runs one exchange; used through `QuartTrio.asgi_http_class`, with what its bodies share."""

    def __init__(self, rules: BodyRules, log: AccessLog | None, app: QuartTrio, scope: HTTPScope) -> None:
        super().__init__(app, scope)
        self._rules = rules
        self._log = log

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        sent = _SentMessages(send)
        if self._log is None:
            await self._run(receive, sent)
            return
        begun_s = trio.current_time()
        try:
            await self._run(receive, sent)
        finally:
            self._log.note(_entry(cast("dict[str, Any]", self.scope), sent, begun_s, trio.current_time()))

    async def _run(self, receive: ASGIReceiveCallable, sent: "_SentMessages") -> None:
        request = self._create_request_from_scope(cast("ASGISendCallable", sent))
        with contextlib.ExitStack() as owner:
            async with trio.open_nursery() as nursery:

                def start_reader(readers: trio.Nursery) -> None:
                    readers.start_soon(self._read, exchange, request, receive, sent)

                body = IncomingBody(request.body, self._rules, partial(start_reader, nursery))
                owner.callback(body.release)
                exchange = Exchange(
                    owner=owner, nursery=nursery, body=body, account=f"peer {_network_of(self.scope.get('client'))}"
                )
                cast("dict[str, Any]", self.scope)[SCOPE_KEY] = exchange
                nursery.start_soon(self._respond, exchange, request, sent)

    async def _read(self, exchange: Exchange, request: Request, receive: ASGIReceiveCallable, sent: "_SentMessages") -> None:
        """Feeds the body to the request until the peer is gone."""
        await exchange.body.fill(receive)
        if sent.is_final:
            exchange.nursery.cancel_scope.deadline = trio.current_time() + FINISH_GRACE_S
        else:
            # Before the owner is closed, which wakes the handler: it would answer that its request was lost.
            exchange.nursery.cancel_scope.cancel()
        if cast("dict[str, Any]", self.scope).get("state", {}).get(SLOW_READER):
            for stream in exchange.streams:
                stream.close(AbortReason.SLOW_READER)
        exchange.owner.close()

    async def _respond(self, exchange: Exchange, request: Request, sent: "_SentMessages") -> None:
        response = await self.app.handle_request(request)
        exchange.body.release()
        exchange.body.admit(exchange.account)
        if response.status_code >= 500:
            for stream in exchange.streams:
                stream.close(AbortReason.SERVER_FAILED)
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


def _entry(scope: dict[str, Any], sent: "_SentMessages", begun_s: float, ended_s: float) -> AccessEntry:
    """What the log says of an exchange that is over."""
    exchange: Exchange | None = scope.get(SCOPE_KEY)  # none for a target that is no URL
    streams = exchange.streams if exchange is not None else []
    summaries = [stream.summary() for stream in streams]
    first_tokens = [each.first_token_s for each in summaries if each.first_token_s is not None]
    reasons = [each.fate.reason for each in summaries if each.fate is not None]
    return AccessEntry(
        method=scope["method"],
        path=scope["raw_path"].decode("latin-1"),
        status=sent.status,
        is_complete=sent.is_final,
        total_s=ended_s - begun_s,
        queued_s=None if exchange is None or exchange.queued_s is None else exchange.queued_s - begun_s,
        first_token_s=min(first_tokens) - begun_s if first_tokens else None,
        prompt_tokens=sum(each.prompt_tokens for each in summaries) if summaries else None,
        completion_tokens=sum(each.completion_tokens for each in summaries) if summaries else None,
        finish_reasons=tuple(dict.fromkeys(reasons)),
        id=_id(exchange.id_prefix, streams[0].request, summaries[0].name) if exchange is not None and streams else None,
        request_id="" if exchange is None else exchange.request_id,
        key="" if exchange is None else exchange.holder.tenant,
    )


def _id(prefix: str, request: RequestId, name: str | None) -> str:
    """What the answer calls the request; the native endpoint takes a client's name for it as it is."""
    return name if name is not None and prefix == NATIVE_PREFIX else public_id(prefix, request, name)


class RefusedWebsocket(TrioASGIWebsocketConnection):
    """Used through `QuartTrio.asgi_websocket_class`: there is none here; the server makes a 403 of the close."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": None})


@attrs.define(eq=False)
class _SentMessages:
    """`send`, with a note whether the last message of the response was handed to it."""

    _send: ASGISendCallable
    is_final: bool = False
    status: int | None = None

    async def __call__(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_final = True
        elif message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)
