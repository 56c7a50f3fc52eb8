"""An HTTP exchange as a target: the ASGI application is called in-process, and its client is the scenario.

Must not know: servers, sockets, endpoints' meaning.
"""

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import Rejected, TextQuestion
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import EngineState, EngineStatus, RequestFate
from layered_llm.domain.placement import ANYWHERE, Placement
from layered_llm.domain.ports.engine import Engine, EngineQuestion, EngineStream
from layered_llm.domain.sampling import SamplingParams
from layered_llm.testing.playing import PromiseBroken, TargetScenario
from layered_llm.transport.http.application import build_application
from layered_llm.transport.http.exchange.api_keys import ApiKeys
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.exchange.settings import HttpSettings
from layered_llm.transport.http.hypercorn_server.listening import Listening

MODEL: Final = "inline"
_SETTINGS: Final = HttpSettings(
    served_model_names=(MODEL,),
    any_model_name=True,
    takes_priority=False,
    created_s=0,
    heartbeat_interval_s=15.0,
    max_body_bytes=1 << 20,
    body_timeout_s=60.0,
    retry_after_s=1,
)


@attrs.frozen(kw_only=True)
class Serving:
    """How the server behind an exchange is set, and what happens to it meanwhile."""

    first_token_timeout_s: float = math.inf
    idle_timeout_s: float = math.inf
    drain_s: float = 2.0
    drain_after_s: float = math.inf
    """From the beginning of the exchange until the server is asked to stop."""


AS_EVER: Final = Serving()


def http_exchange(
    path: str,
    body: Mapping[str, Any],
    *,
    status: int = HTTPStatus.OK,
    error: str | None = None,
    send_s: float = 0.0,
    serving: Serving = AS_EVER,
) -> TargetScenario:
    """A target that POSTs `body`, and reads the response at the pace of `send_s` a message until it is over or it is cut.

    A response that is not cut must have this status and end once: one `[DONE]`, and one finish_reason for each choice. Where
    `error` is given it must tell this code, as its body or as its last event.
    """
    switch = _Switch(serving)

    async def exchange(engine: Engine, disconnect: trio.Event) -> None:
        client = _Client(json.dumps(body).encode(), disconnect, send_s)
        application = switch.application_on(engine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(switch.drain_in_time)
            await application(_scope(path), client.receive, client.send)
            nursery.cancel_scope.cancel()
        if not disconnect.is_set():
            _check(client, status, error)

    return exchange


def ended_by_id(path: str, body: Mapping[str, Any]) -> TargetScenario:
    """A target that POSTs `body`, for a stream, and has a second exchange end it by the id that its first chunk tells."""
    switch = _Switch(AS_EVER)

    async def exchange(engine: Engine, disconnect: trio.Event) -> None:
        application = switch.application_on(engine)
        client = _Client(json.dumps({**body, "stream": True}).encode(), disconnect, 0.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_by_id, application, client)
            await application(_scope(path), client.receive, client.send)
            nursery.cancel_scope.cancel()
        if not disconnect.is_set():
            _check(client, HTTPStatus.OK, "aborted")

    return exchange


async def _end_by_id(application: Any, client: "_Client") -> None:
    await client.began.wait()
    (first, *_) = client.response.removeprefix(b"data: ").split(b"\n\n")
    order = _Client(json.dumps({"rid": json.loads(first)["id"]}).encode(), trio.Event(), 0.0)
    await application(_scope("/abort_request"), order.receive, order.send)
    if order.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
        raise PromiseBroken(f"an order to end a request is answered with {order.status}: {order.response!r}")


@attrs.define(eq=False)
class _Switch:
    """The engine of the present run, so that the application, which keeps nothing of an exchange, is built once.

    A drain is for good: where there is one, each run has an application of its own.
    """

    _serving: Serving
    engine: Engine | None = None
    _application: Any = None
    _drain: Drain = attrs.field(init=False, default=attrs.Factory(lambda self: self._new_drain(), takes_self=True))

    async def drain_in_time(self) -> None:
        """To be run beside the exchange."""
        await trio.sleep(self._serving.drain_after_s)
        self._drain.begin()

    def _new_drain(self) -> Drain:
        return Drain(self._serving.drain_s)

    def application_on(self, engine: Engine) -> Any:
        """The application, working with this engine from now on; untyped, as ASGI's messages are dicts here."""
        self.engine = engine
        if self._drain.is_active:
            self._drain, self._application = self._new_drain(), None
        self._application = self._application or build_application(
            engine=self,
            settings=attrs.evolve(
                _SETTINGS,
                first_token_timeout_s=self._serving.first_token_timeout_s,
                idle_timeout_s=self._serving.idle_timeout_s,
            ),
            keys=ApiKeys(),
            listening=Listening(is_loopback=True),
            drain=self._drain,
            wall_clock=lambda: 0.0,
            new_hex_id=lambda: "0" * 32,
        )
        return self._application

    def status(self) -> EngineStatus:
        return self._present.status()

    def open(
        self, owner: contextlib.ExitStack, prompt: Prompt, params: SamplingParams, placement: Placement = ANYWHERE
    ) -> EngineStream | Rejected:
        return self._present.open(owner, prompt, params, placement)

    def ask(
        self, owner: contextlib.ExitStack, question: Callable[[RequestId], TextQuestion], tenant: str = ""
    ) -> EngineQuestion | Rejected:
        return self._present.ask(owner, question, tenant)

    async def find(self, request: RequestId | None, tenant: str | None = "", names: tuple[str, ...] = ()) -> RequestFate | None:
        return await self._present.find(request, tenant, names)

    async def abort(self, request: RequestId | None, tenant: str | None = "", names: tuple[str, ...] = ()) -> int:
        return await self._present.abort(request, tenant, names)

    async def state(self, *, flush_cache: bool = False) -> EngineState:
        return await self._present.state(flush_cache=flush_cache)

    @property
    def _present(self) -> Engine:
        if self.engine is None:
            raise InvariantViolated("an exchange is part of a run")
        return self.engine


@attrs.define(eq=False)
class _Client:
    _body: bytes
    _disconnect: trio.Event
    _send_s: float
    status: int = 0
    response: bytes = b""
    _asked: bool = False
    began: trio.Event = attrs.field(factory=trio.Event)
    """The first part of a response's body is there."""
    _ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def has_whole_response(self) -> bool:
        return self._ended.is_set()

    async def receive(self) -> dict[str, Any]:
        """The body, then word of the disconnect, as a server gives it: also behind the last message of a response."""
        if not self._asked:
            self._asked = True
            await trio.lowlevel.checkpoint()
            return {"type": "http.request", "body": self._body, "more_body": False}
        async with trio.open_nursery() as nursery:
            for event in (self._disconnect, self._ended):
                nursery.start_soon(_cancel_after, event, nursery.cancel_scope)
        return {"type": "http.disconnect"}

    async def send(self, message: Mapping[str, Any]) -> None:
        await trio.sleep(self._send_s)
        self.status = message.get("status", self.status)
        self.response += message.get("body", b"")
        if self.response:
            self.began.set()
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._ended.set()


def _check(client: _Client, status: int, error: str | None) -> None:
    """C1, as a client of the HTTP server counts."""
    if not client.has_whole_response:
        raise PromiseBroken("C1: a response ends without its last message although nobody cut it")
    if client.status == HTTPStatus.SERVICE_UNAVAILABLE != status:
        return
    if client.status != status:
        raise PromiseBroken(f"the response has status {client.status}, not {status}: {client.response!r}")
    chunks = _chunks(client.response)
    if error is not None and error != chunks[-1].get("error", {}).get("code"):
        raise PromiseBroken(f"the response does not tell the error {error}: {client.response!r}")
    if status != HTTPStatus.OK:
        return
    reasons = Counter(
        choice["index"] for chunk in chunks for choice in chunk.get("choices", ()) if choice["finish_reason"] is not None
    )
    choices = {choice["index"] for chunk in chunks for choice in chunk.get("choices", ())}
    if not any("error" in chunk for chunk in chunks) and reasons != Counter(choices):
        raise PromiseBroken(f"C1: choices {choices} of a response have finish reasons {dict(reasons)}")


def _chunks(response: bytes) -> list[dict[str, Any]]:
    if not response.startswith((b"data: ", b": ")):
        return [json.loads(response)]
    events = [event.removeprefix(b"data: ") for event in response.split(b"\n\n") if event.startswith(b"data: ")]
    if events.count(b"[DONE]") != 1 or events[-1] != b"[DONE]":
        raise PromiseBroken(f"C1: a stream ends in {events[-1]!r} and says [DONE] {events.count(b'[DONE]')} times")
    return [json.loads(event) for event in events[:-1]]


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _scope(path: str) -> Any:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "extensions": {},
        "state": {},
    }
