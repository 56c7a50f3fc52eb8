import json
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.generation.sources import Patience
from support.http_client import CHAT, COMPLETIONS, MESSAGES, SETTINGS, Call, application, post
from support.http_engine import FakeEngine, FakeStream, accepting, ended, text_delta

LIMITED = attrs.evolve(SETTINGS, heartbeat_interval_s=15.0, first_token_timeout_s=40.0, idle_timeout_s=20.0)
STOP = text_delta("", token_ids=(2,), finish_reason=FinishReason.STOP)
CHAT_BODY = {"messages": MESSAGES}


class SlowCall(Call):
    """Takes longer for everything it is sent than the limits allow between two tokens."""

    async def _send(self, message: Any) -> None:
        await trio.sleep(100.0)
        await super()._send(message)


def ignoring(stream: FakeStream) -> None:
    pass


def last_error(events: list[Any]) -> tuple[str, str]:
    *_, error, done = events
    assert done == "[DONE]"
    return error["error"]["type"], error["error"]["code"]


@pytest.mark.parametrize("script", [ignoring, accepting])
async def test_a_whole_answer_without_a_first_token_is_a_504(script: Any, autojump_clock: MockClock) -> None:
    engine = FakeEngine(script)

    exchange = await post(application(engine, settings=LIMITED), CHAT, CHAT_BODY)

    assert (504, "timeout", "first_token_timeout") == (exchange.status, exchange.error()["type"], exchange.error()["code"])
    assert 40.0 == trio.current_time()
    assert [AbortReason.TIMEOUT] == engine.aborts


async def test_the_time_until_a_request_is_queued_counts(autojump_clock: MockClock) -> None:
    engine = FakeEngine(ignoring)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(post, application(engine, settings=LIMITED), CHAT, CHAT_BODY)
        stream = await engine.wait_opened()
        await trio.sleep(30.0)
        stream.accept()

    assert 40.0 == trio.current_time()
    assert [AbortReason.TIMEOUT] == engine.aborts


async def test_heartbeats_go_on_until_a_stream_without_a_first_token_ends_with_an_error(autojump_clock: MockClock) -> None:
    engine = FakeEngine(accepting)

    exchange = await post(application(engine, settings=LIMITED), CHAT, {**CHAT_BODY, "stream": True})

    assert 200 == exchange.status
    assert [b": ping\n\n"] * 2 == exchange.sends[:2]
    assert ("timeout", "first_token_timeout") == last_error(exchange.events())
    assert 40.0 == trio.current_time()
    assert [AbortReason.TIMEOUT] == engine.aborts


def waited_too_long(stream: FakeStream) -> None:
    stream.accept()
    stream.emit(text_delta("", token_ids=(), finish_reason=FinishReason.QUEUE_TIMEOUT), ended(error="It waited."))


async def test_a_whole_answer_that_waited_too_long_in_the_queue_is_a_503_to_be_tried_again() -> None:
    engine = FakeEngine(waited_too_long)

    exchange = await post(application(engine), CHAT, CHAT_BODY)

    error = exchange.error()
    assert (503, "unavailable_error", "queue_timeout", "It waited.") == (
        exchange.status,
        *(error[key] for key in ("type", "code", "message")),
    )
    assert (str(SETTINGS.retry_after_s), "true") == (exchange.headers["retry-after"], exchange.headers["x-should-retry"])
    assert [] == engine.aborts


async def test_a_stream_that_waited_too_long_in_the_queue_ends_with_an_error_event() -> None:
    exchange = await post(application(FakeEngine(waited_too_long)), CHAT, {**CHAT_BODY, "stream": True})

    assert ("unavailable_error", "queue_timeout") == last_error(exchange.events())


async def test_a_prompt_that_waited_too_long_takes_the_others_of_its_body_along() -> None:
    engine = FakeEngine(accepting)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(post, application(engine), COMPLETIONS, {"prompt": ["a", "b"]})
        waited_too_long(await engine.wait_opened(2))

    assert [AbortReason.SERVER_FAILED] == engine.aborts


@pytest.mark.parametrize("stream", [False, True])
async def test_a_token_that_does_not_come_ends_the_answer(stream: bool, autojump_clock: MockClock) -> None:
    engine = FakeEngine(accepting)
    call = Call(application(engine, settings=LIMITED))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", CHAT, json.dumps({**CHAT_BODY, "stream": stream}).encode())
        opened = await engine.wait_opened()
        await trio.sleep(35.0)
        opened.emit(text_delta("a"))

    error = last_error(call.exchange.events()) if stream else tuple(call.exchange.error()[key] for key in ("type", "code"))
    assert ("timeout", "idle_timeout") == error
    assert 55.0 == trio.current_time()
    assert [AbortReason.TIMEOUT] == engine.aborts


async def test_neither_limit_bounds_a_stream_whose_tokens_keep_coming(autojump_clock: MockClock) -> None:
    engine = FakeEngine(accepting)
    call = Call(application(engine, settings=LIMITED))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", CHAT, json.dumps({**CHAT_BODY, "stream": True}).encode())
        opened = await engine.wait_opened()
        for _ in range(10):
            await trio.sleep(19.0)
            opened.emit(text_delta("a"))
        opened.emit(STOP, ended())

    assert "stop" == call.exchange.events()[-2]["choices"][0]["finish_reason"]
    assert [] == engine.aborts


async def test_a_client_that_is_slow_to_read_does_not_use_up_the_time(autojump_clock: MockClock) -> None:
    engine = FakeEngine(accepting)

    call = SlowCall(application(engine, settings=LIMITED))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", CHAT, json.dumps({**CHAT_BODY, "stream": True}).encode())
        opened = await engine.wait_opened()
        opened.emit(text_delta("a"))
        await trio.sleep(150.0)
        opened.emit(STOP, ended())

    assert "stop" == call.exchange.events()[-2]["choices"][0]["finish_reason"]
    assert [] == engine.aborts


async def test_a_timeout_ends_all_prompts_of_a_body(autojump_clock: MockClock) -> None:
    engine = FakeEngine(accepting)

    exchange = await post(application(engine, settings=LIMITED), COMPLETIONS, {"prompt": ["a", "b"]})

    assert 504 == exchange.status
    assert [AbortReason.TIMEOUT] * 2 == engine.aborts


async def test_without_a_limit_nothing_ends_a_silent_stream_but_the_drain(autojump_clock: MockClock) -> None:
    engine, drain = FakeEngine(accepting), Drain(2.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(post, application(engine, drain=drain), CHAT, CHAT_BODY)
        await trio.sleep(80_000.0)
        drain.begin()

    assert [AbortReason.SHUTDOWN] == engine.aborts


def test_patience_is_over_when_the_waits_use_it_up_and_each_output_renews_it() -> None:
    patience = Patience(40.0, 20.0)
    patience.spend(15.0)
    assert (25.0, False) == (patience.left_s, patience.is_over)

    patience.renew()
    assert 20.0 == patience.left_s

    patience.spend(20.0)
    assert patience.is_over
