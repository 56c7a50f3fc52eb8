"""The application under test, driven in process: one call of the ASGI application for each exchange."""

import json
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio
from quart_trio import QuartTrio

from layered_llm.transport.http.application import build_application
from layered_llm.transport.http.exchange.access_log import AccessLog
from layered_llm.transport.http.exchange.api_keys import ApiKeys
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.exchange.refusals import Refusals
from layered_llm.transport.http.exchange.request_checks import PageRules
from layered_llm.transport.http.exchange.settings import HttpSettings
from layered_llm.transport.http.hypercorn_server.listening import Listening
from support.http_engine import FakeEngine

CREATED_S = 1_700_000_000
SETTINGS = HttpSettings(
    served_model_names=("small", "little"),
    any_model_name=False,
    takes_priority=False,
    created_s=1_600_000_000,
    heartbeat_interval_s=15.0,
    max_body_bytes=1 << 20,
    body_timeout_s=60.0,
    retry_after_s=5,
    pages=PageRules(allowed_hosts=frozenset({"test", "x"})),
)
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def application(
    engine: FakeEngine,
    *,
    settings: HttpSettings = SETTINGS,
    keys: ApiKeys | None = None,
    listening: Listening | None = None,
    drain: Drain | None = None,
    access_log: AccessLog | None = None,
    refusals: Refusals | None = None,
) -> QuartTrio:
    return build_application(
        engine=engine,
        settings=settings,
        keys=keys or ApiKeys(),
        listening=listening or Listening(is_loopback=True),
        drain=drain or Drain(2.0),
        wall_clock=lambda: CREATED_S + 0.9,
        new_hex_id=lambda: "feed",
        access_log=access_log,
        refusals=refusals,
    )


@attrs.define
class Exchange:
    """What one call of the application sent."""

    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    sends: list[bytes] = attrs.field(factory=list)
    """The non-empty bodies, one item for each send."""
    is_complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.sends)

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> Any:
        return self.json()["error"]

    def events(self) -> list[Any]:
        """The data of all events, the JSON decoded and "[DONE]" as it is; comments are left out."""
        assert self.body.endswith(b"\n\n")
        items = [item for item in self.body.decode().split("\n\n") if item.startswith("data: ")]
        return [item[6:] if item == "data: [DONE]" else json.loads(item[6:]) for item in items]


@attrs.define(eq=False)
class Call:
    """An exchange under way: `gone` disconnects the client, `stall_at` lets that send never return."""

    app: QuartTrio
    stall_at: int | None = None
    in_final_send: Callable[[], Awaitable[None]] | None = None
    """What the server does inside of the send that completes the response."""
    receive: Callable[[], Awaitable[Any]] | None = None
    """Brings the messages of the body, in place of one that has all of it."""
    exchange: Exchange = attrs.field(factory=Exchange)
    gone: trio.Event = attrs.field(factory=trio.Event)
    stalled: trio.Event = attrs.field(factory=trio.Event)
    _sent: int = 0

    async def run(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Exchange:
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.1"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": urllib.parse.unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"test"), *((k.lower().encode(), v.encode()) for k, v in (headers or {}).items())],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "extensions": {},
            "state": {},
        }
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            message = next(messages, None)
            if message is None:
                await self.gone.wait()
                return {"type": "http.disconnect"}
            return message

        await self.app(scope, self.receive or receive, self._send)  # type: ignore[arg-type] # plain dicts, as servers send them
        return self.exchange

    async def _send(self, message: Any) -> None:
        self._sent += 1
        if self._sent == self.stall_at:
            self.stalled.set()
            await trio.Event().wait()
        if message["type"] == "http.response.start":
            self.exchange.status = message["status"]
            self.exchange.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            if message["body"]:
                self.exchange.sends.append(message["body"])
            if not message["more_body"] and self.in_final_send is not None:
                await self.in_final_send()
            self.exchange.is_complete = not message["more_body"]
        await trio.lowlevel.checkpoint()


async def post(
    app: QuartTrio, path: str, body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None
) -> Exchange:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await Call(app).run("POST", path, data, headers)


async def get(app: QuartTrio, path: str, headers: Mapping[str, str] | None = None) -> Exchange:
    return await Call(app).run("GET", path, headers=headers)
