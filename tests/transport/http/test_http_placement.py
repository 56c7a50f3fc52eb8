import attrs
import pytest

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.placement import Placement
from support.http_client import CHAT, COMPLETIONS, SETTINGS, application, post
from support.http_engine import FakeEngine, answering, ended, text_delta

BODIES: dict[str, dict[str, object]] = {CHAT: {"messages": [{"role": "user", "content": "hi"}]}, COMPLETIONS: {"prompt": "hi"}}
STOP = text_delta("!", token_ids=(2,), finish_reason=FinishReason.STOP)
BY_PRIORITY = attrs.evolve(SETTINGS, takes_priority=True)


@pytest.mark.parametrize("path", BODIES)
async def test_salt_and_priority_reach_the_engine(path: str) -> None:
    engine = FakeEngine(answering(STOP, ended()))
    body = {**BODIES[path], "cache_salt": "tenant-a", "priority": -3}

    await post(application(engine, settings=BY_PRIORITY), path, body)

    assert [Placement(cache_salt="tenant-a", priority=-3)] == [stream.placement for stream in engine.streams]


@pytest.mark.parametrize(
    ("field", "value"),
    [("priority", 1), ("priority", "high"), ("cache_salt", ""), ("cache_salt", 5), ("cache_salt", "x" * 1025)],
)
async def test_a_placement_that_cannot_be_honoured_is_refused_by_name(field: str, value: object) -> None:
    engine = FakeEngine(answering(STOP, ended()))

    answer = await post(application(engine), COMPLETIONS, {**BODIES[COMPLETIONS], field: value})

    assert (400, field) == (answer.status, answer.json()["error"]["param"])
    assert [] == engine.streams


async def test_the_neutral_priority_is_taken_by_every_server() -> None:
    engine = FakeEngine(answering(STOP, ended()))

    await post(application(engine), COMPLETIONS, {**BODIES[COMPLETIONS], "priority": 0, "cache_salt": None})

    assert [Placement()] == [stream.placement for stream in engine.streams]
