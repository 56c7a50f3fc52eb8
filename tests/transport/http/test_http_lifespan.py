import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from layered_llm.transport.http.hypercorn_server.lifespan import LifespanApplication
from support.http_client import application
from support.http_engine import FakeEngine
from support.http_server import http_request, read_until, running

SCOPE: Any = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}


@attrs.define(eq=False)
class Server:
    """The server's side of a lifespan."""

    sent: list[str] = attrs.field(factory=list)
    shutdown: trio.Event = attrs.field(factory=trio.Event)
    _asked: bool = False

    async def receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "lifespan.startup"}
        await self.shutdown.wait()
        return {"type": "lifespan.shutdown"}

    async def send(self, message: Any) -> None:
        self.sent.append(message["type"])


def living(run_engine: Callable[[], Awaitable[None]]) -> LifespanApplication:
    return LifespanApplication(app=application(FakeEngine()), run_engine=run_engine, stop_warning_s=2.0)


async def test_startup_is_complete_while_the_engine_still_starts() -> None:
    server, ended = Server(), trio.Event()

    async def run_engine() -> None:
        try:
            await trio.Event().wait()
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(living(run_engine), SCOPE, server.receive, server.send)
        await trio.testing.wait_all_tasks_blocked()
        assert server.sent == ["lifespan.startup.complete"]
        server.shutdown.set()

    assert ended.is_set()
    assert server.sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_shutdown_is_complete_when_the_engine_has_ended(autojump_clock: MockClock) -> None:
    server, seen = Server(), []

    async def run_engine() -> None:
        try:
            await trio.Event().wait()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            seen.extend(server.sent)

    server.shutdown.set()
    await living(run_engine)(SCOPE, server.receive, server.send)

    assert seen in ([], ["lifespan.startup.complete"])
    assert server.sent[-1] == "lifespan.shutdown.complete"


async def test_an_engine_that_is_slow_to_stop_is_named(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    async def run_engine() -> None:
        try:
            await trio.Event().wait()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(living(run_engine), SCOPE, server.receive, server.send)
        await trio.testing.wait_all_tasks_blocked()
        server.shutdown.set()

    assert "more than 2 s to stop" in caplog.text


async def test_a_dead_engine_is_logged_and_the_application_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def run_engine() -> None:
        raise ZeroDivisionError("no engine")

    async with running(living(run_engine)) as server:
        client = await server.connect()
        await client.send_all(http_request("GET", "/health"))
        await read_until(client, b'"ok"')
        await client.aclose()

    assert "no engine" in caplog.text


async def test_an_engine_that_ends_early_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    async def run_engine() -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(living(run_engine), SCOPE, server.receive, server.send)
        await trio.testing.wait_all_tasks_blocked()
        server.shutdown.set()

    assert "ended before the server" in caplog.text


def test_another_event_loop_is_refused_with_the_right_command() -> None:
    sent: list[Any] = []

    async def run_engine() -> None:
        raise AssertionError("must not run")

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(living(run_engine)(SCOPE, receive, send))

    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "hypercorn -k trio" in sent[0]["message"]
