import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from layered_llm.domain.finish import AbortReason, FinishReason
from support.http_client import CHAT, COMPLETIONS, MESSAGES, Call, application
from support.http_engine import FakeEngine, FakeStream, accepting, answering, ended, text_delta

BODIES = [pytest.param(CHAT, {"messages": MESSAGES, "stream": stream}, id=f"chat-{stream}") for stream in (False, True)] + [
    pytest.param(COMPLETIONS, {"prompt": prompt, "stream": stream}, id=f"completions-{len(prompt)}-{stream}")
    for prompt in (["a"], ["a", "b"])
    for stream in (False, True)
]
END = text_delta("x", finish_reason=FinishReason.STOP)


def silent(_stream: FakeStream) -> None:
    """The verdict never comes."""


SCRIPTS = {
    "queued in text": silent,
    "waiting": accepting,
    "decoding": answering(text_delta("a")),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_client_that_leaves_aborts_each_of_its_requests_once(
    path: str, body: dict[str, Any], script: Callable[[FakeStream], None]
) -> None:
    engine = FakeEngine(script)
    call = Call(application(engine))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", path, json.dumps(body).encode())
        await engine.wait_opened()
        await trio.testing.wait_all_tasks_blocked()
        call.gone.set()

    assert [stream.aborts for stream in engine.streams] == [[AbortReason.CLIENT_GONE]] * len(engine.streams)
    assert not call.exchange.is_complete


@pytest.mark.parametrize("script", [silent, accepting])
async def test_a_client_that_leaves_is_not_told_that_the_engine_died(script: Callable[[FakeStream], None]) -> None:
    engine = FakeEngine(script)
    call = Call(application(engine))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", CHAT, json.dumps({"messages": MESSAGES}).encode())
        await engine.wait_opened()
        await trio.testing.wait_all_tasks_blocked()
        call.gone.set()

    assert call.exchange.status == 0


@pytest.mark.parametrize("stall_at", [1, 2])
async def test_a_client_that_leaves_while_something_is_sent_aborts_its_request(stall_at: int) -> None:
    # The first send is the headers: the response generator is not even started then.
    engine = FakeEngine(answering(text_delta("a")))
    call = Call(application(engine), stall_at=stall_at)
    body = {"messages": MESSAGES, "stream": True}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", CHAT, json.dumps(body).encode())
        await call.stalled.wait()
        call.gone.set()

    assert engine.aborts == [AbortReason.CLIENT_GONE]


async def test_the_abort_leaves_before_anybody_else_runs() -> None:
    engine = FakeEngine(accepting)
    call = Call(application(engine))
    order: list[str] = []

    def script(stream: FakeStream) -> None:
        stream.accept()

        class Told(list[AbortReason]):
            def append(self, reason: AbortReason) -> None:
                order.append("abort")
                super().append(reason)

        stream.aborts = Told()

    engine.script = script

    async def run() -> None:
        await call.run("POST", CHAT, json.dumps({"messages": MESSAGES}).encode())
        order.append("left")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await engine.wait_opened()
        await trio.testing.wait_all_tasks_blocked()
        call.gone.set()

    assert order == ["abort", "left"]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_cancelled_server_aborts_wherever_the_cancellation_lands(path: str, body: dict[str, Any]) -> None:
    steps = 0
    while True:
        engine = FakeEngine(answering(text_delta("a", choice=0), END, ended()))
        landed = await _cancelled_after(steps, engine, path, body)
        assert all(stream.is_over for stream in engine.streams)
        assert all(len(stream.aborts) <= 1 for stream in engine.streams)
        if not landed:
            break
        steps += 1

    assert steps > 5
    assert engine.aborts == []


async def _cancelled_after(steps: int, engine: FakeEngine, path: str, body: dict[str, Any]) -> bool:
    """Runs an exchange and cancels it after so many steps of the scheduler; whether it was still running then."""
    done = False

    async def run(scope: trio.CancelScope) -> None:
        nonlocal done
        with scope:
            await Call(application(engine)).run("POST", path, json.dumps(body).encode())
            done = True

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, scope)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        scope.cancel()
    return not done


async def test_a_disconnect_after_the_last_body_does_not_cut_the_final_send() -> None:
    call = Call(application(FakeEngine(answering(END, ended()))))

    async def recycle() -> None:
        # As hypercorn does: it reports the disconnect from within the send that completes the response.
        call.gone.set()
        await trio.testing.wait_all_tasks_blocked()

    call.in_final_send = recycle

    exchange = await call.run("POST", CHAT, json.dumps({"messages": MESSAGES}).encode())

    assert exchange.is_complete


async def test_a_final_send_that_never_returns_is_left_after_a_grace(autojump_clock: trio.testing.MockClock) -> None:
    call = Call(application(FakeEngine(answering(END, ended()))), stall_at=3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", CHAT, json.dumps({"messages": MESSAGES}).encode())
        await call.stalled.wait()
        call.gone.set()

    assert trio.current_time() == pytest.approx(1.0)
