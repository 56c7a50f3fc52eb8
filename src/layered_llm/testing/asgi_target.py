"""An HTTP exchange as a target: the ASGI application is called in-process, and its client is the scenario.

Must not know: servers, sockets, endpoints' meaning.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import attrs
import trio

from layered_llm.testing.cancel_everywhere import TargetScenario
from layered_llm.transport.http.application import build_application
from layered_llm.transport.http.drain import Drain
from layered_llm.transport.http.engine_port import Engine
from layered_llm.transport.http.settings import HttpSettings

MODEL: Final = "inline"
_SETTINGS: Final = HttpSettings(
    served_model_names=(MODEL,),
    any_model_name=True,
    created_s=0,
    heartbeat_interval_s=15.0,
    max_body_bytes=1 << 20,
    body_timeout_s=60.0,
    retry_after_s=1,
)


def http_exchange(path: str, body: Mapping[str, Any], *, send_s: float = 0.0) -> TargetScenario:
    """A target that POSTs `body`, and reads the response at the pace of `send_s` a message until it is over or it is cut."""

    async def exchange(engine: Engine, disconnect: trio.Event) -> None:
        app = build_application(
            engine=engine,
            settings=_SETTINGS,
            drain=Drain(2.0),
            wall_clock=lambda: 0.0,
            new_hex_id=lambda: "0" * 32,
            draw_seed=lambda: 0,
        )
        client = _Client(json.dumps(body).encode(), disconnect, send_s)
        await cast("Any", app)(_scope(path), client.receive, client.send)  # ASGI's messages are dicts, hypercorn types them

    return exchange


@attrs.define(eq=False)
class _Client:
    _body: bytes
    _disconnect: trio.Event
    _send_s: float
    _asked: bool = False
    _ended: trio.Event = attrs.field(factory=trio.Event)

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
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._ended.set()


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
