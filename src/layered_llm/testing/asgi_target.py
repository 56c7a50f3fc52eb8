"""An HTTP exchange as a target: the ASGI application is called in-process, and its client is the scenario.

Must not know: servers, sockets, endpoints' meaning.
"""

import contextlib
import json
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
from layered_llm.domain.messages.supervision import EngineState, EngineStatus
from layered_llm.domain.placement import ANYWHERE, Placement
from layered_llm.domain.sampling import SamplingParams
from layered_llm.testing.playing import PromiseBroken, TargetScenario
from layered_llm.transport.http.api_keys import ApiKeys
from layered_llm.transport.http.application import build_application
from layered_llm.transport.http.drain import Drain
from layered_llm.transport.http.engine_port import Engine, EngineQuestion, EngineStream
from layered_llm.transport.http.settings import HttpSettings

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


def http_exchange(path: str, body: Mapping[str, Any], *, status: int = HTTPStatus.OK, send_s: float = 0.0) -> TargetScenario:
    """A target that POSTs `body`, and reads the response at the pace of `send_s` a message until it is over or it is cut.

    A response that is not cut must have this status and end once: one `[DONE]`, and one finish_reason for each choice.
    """
    switch = _Switch()

    async def exchange(engine: Engine, disconnect: trio.Event) -> None:
        client = _Client(json.dumps(body).encode(), disconnect, send_s)
        await switch.application_on(engine)(_scope(path), client.receive, client.send)
        if not disconnect.is_set():
            _check(client, status)

    return exchange


@attrs.define(eq=False)
class _Switch:
    """The engine of the present run, so that the application, which keeps nothing of an exchange, is built once."""

    engine: Engine | None = None
    _application: Any = None

    def application_on(self, engine: Engine) -> Any:
        """The application, working with this engine from now on; untyped, as ASGI's messages are dicts here."""
        self.engine = engine
        self._application = self._application or build_application(
            engine=self,
            settings=_SETTINGS,
            keys=ApiKeys(),
            drain=Drain(2.0),
            wall_clock=lambda: 0.0,
            new_hex_id=lambda: "0" * 32,
            draw_seed=lambda: 0,
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

    async def abort(self, request: RequestId | None, tenant: str = "") -> int:
        return await self._present.abort(request, tenant)

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
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._ended.set()


def _check(client: _Client, status: int) -> None:
    """C1, as a client of the HTTP server counts."""
    if not client.has_whole_response:
        raise PromiseBroken("C1: a response ends without its last message although nobody cut it")
    if client.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return
    if client.status != status:
        raise PromiseBroken(f"the response has status {client.status}, not {status}: {client.response!r}")
    if status != HTTPStatus.OK:
        return
    chunks = _chunks(client.response)
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
        "headers": [(b"host", b"inline"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "extensions": {},
        "state": {},
    }
