import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.transport.http.sglang.health_generate import LIMIT_S
from support.http_client import Call, application, get
from support.http_engine import FakeEngine, accepting, answering, ended, text_delta

PATH = "/health_generate"


async def test_a_token_that_comes_is_health() -> None:
    engine = FakeEngine(answering(text_delta("x", finish_reason=FinishReason.LENGTH), ended()))

    exchange = await get(application(engine), PATH)

    assert (200, {"status": "ok"}) == (exchange.status, exchange.json())
    assert (1, True) == (engine.streams[0].params.max_tokens, engine.streams[0].params.ignore_eos)


async def test_an_engine_that_fails_is_not_healthy() -> None:
    engine = FakeEngine(answering(text_delta("", finish_reason=FinishReason.ERROR), ended(error="it broke")))

    exchange = await get(application(engine), PATH)

    assert (500, "it broke") == (exchange.status, exchange.error()["message"])


async def test_an_engine_that_does_nothing_is_not_healthy_and_holds_nothing(autojump_clock: MockClock) -> None:
    engine = FakeEngine(accepting)

    exchange = await get(application(engine), PATH)

    assert (503, "health_timeout") == (exchange.status, exchange.error()["code"])
    assert LIMIT_S == trio.current_time()
    assert 1 == len(engine.aborts)


async def test_a_probe_that_leaves_takes_its_request_along() -> None:
    engine = FakeEngine(accepting)
    call = Call(application(engine))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "GET", PATH)
        await engine.wait_opened()
        await wait_all_tasks_blocked()
        call.gone.set()

    assert [AbortReason.CLIENT_GONE] == engine.aborts
