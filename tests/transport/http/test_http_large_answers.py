"""Answers that are sent at once: what they may hold while they grow, and how they are written without holding up others."""

import json
from functools import partial
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ports.engine import BacklogFull
from layered_llm.domain.stream import ChoiceDelta, SampledLogprob, TokenLogprob
from layered_llm.transport.http.exchange.api_keys import ApiKeys
from layered_llm.transport.http.exchange.byte_budget import Over
from layered_llm.transport.http.exchange.fair_work import FairWork
from layered_llm.transport.http.generation import answer
from layered_llm.transport.http.generation.answer import AnswerPlan, StreamedAnswer, portions
from layered_llm.transport.http.generation.sources import Batch
from layered_llm.transport.http.openai.schema import responses
from layered_llm.transport.http.openai.schema.responses import ResponseHead, Shape
from layered_llm.transport.http.sglang import generate_answer
from support.http_client import CHAT, COMPLETIONS, MESSAGES, SETTINGS, Call, application, post
from support.http_engine import FakeEngine, FakeStream, answering, ended, text_delta

GENERATE = "/generate"
TIGHT = attrs.evolve(SETTINGS, max_unsent_answer_bytes=50_000, max_unsent_answer_bytes_per_client=20_000)


def sampled(count: int) -> tuple[SampledLogprob, ...]:
    """Each with a likeliest token beside it."""
    tokens = [f" {number}".encode() for number in range(count)]
    return tuple(
        SampledLogprob(
            token_id=number, token=token, logprob=-1.0, top=(TokenLogprob(token_id=number, token=token, logprob=-1.0),)
        )
        for number, token in enumerate(tokens)
    )


def told(count: int, *, prompt: int = 0, choice: int = 0) -> ChoiceDelta:
    return text_delta(
        "x" * count,
        choice=choice,
        token_ids=tuple(range(count)),
        logprobs=sampled(count),
        prompt_logprobs=sampled(prompt),
        finish_reason=FinishReason.STOP,
    )


ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1, "n": 2, "prompt_logprobs": 1},
    COMPLETIONS: {"prompt": "x", "logprobs": 1, "n": 2, "echo": True},
    GENERATE: {"text": "x", "return_logprob": True, "top_logprobs_num": 1, "logprob_start_len": 0, "sampling_params": {"n": 2}},
}


@pytest.mark.parametrize("path", ASKED)
async def test_a_long_answer_says_what_a_short_one_would(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events = (told(700, prompt=600), told(90, prompt=600, choice=1), ended())
    long = await post(application(FakeEngine(answering(*events))), path, ASKED[path])
    for module in (answer, generate_answer):
        monkeypatch.setattr(module, "MOST_LOGPROBS_AT_ONCE", 10**9)
    short = await post(application(FakeEngine(answering(*events))), path, ASKED[path])

    assert short.json() == long.json()
    assert len(short.sends) < len(long.sends)


@pytest.mark.parametrize("path", ASKED)
async def test_a_long_answer_is_written_piece_by_piece(path: str) -> None:
    exchange = await post(application(FakeEngine(answering(told(5000), told(5000, choice=1), ended()))), path, ASKED[path])

    assert len(exchange.sends) > 1


async def test_nothing_more_is_written_of_an_answer_whose_client_has_left() -> None:
    call = Call(application(FakeEngine(answering(told(5000), told(5000, choice=1), ended()))), stall_at=3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", CHAT, json.dumps(ASKED[CHAT]).encode())
        await call.stalled.wait()
        call.gone.set()

    assert not call.exchange.is_complete
    assert len(call.exchange.sends) <= 2


def test_a_large_delta_is_divided_and_loses_nothing() -> None:
    delta = told(5000, prompt=3000)
    parts = list(portions(delta, echoes=True))

    assert delta.token_ids == tuple(token for part in parts for token in part.token_ids)
    assert (*delta.prompt_logprobs, *delta.logprobs) == tuple(
        one for part in parts for one in (*part.prompt_logprobs, *part.logprobs)
    )
    assert delta.text == "".join(part.text for part in parts)
    assert [FinishReason.RUNNING] * (len(parts) - 1) + [FinishReason.STOP] == [part.finish_reason for part in parts]
    assert max(map(answer.logprob_count, parts)) <= answer.MOST_LOGPROBS_AT_ONCE


def filling(stream: FakeStream) -> None:
    """Accepts and brings some 13 KB of answer, which goes on."""
    stream.accept()
    stream.emit(text_delta("x" * 1000, token_ids=tuple(range(300))))


async def test_an_answer_that_never_fits_is_ended_and_aborted() -> None:
    engine = FakeEngine(answering(told(100)))
    exchange = await post(application(engine, settings=TIGHT), CHAT, ASKED[CHAT])

    assert (400, "answer_too_large", "stream") == (
        exchange.status, exchange.error()["code"], exchange.error()["param"],
    )  # fmt: skip
    assert [AbortReason.OVER_BUDGET] == engine.aborts


async def test_a_stream_of_the_same_length_is_not_limited() -> None:
    engine = FakeEngine(answering(told(100), told(100, choice=1), ended()))
    exchange = await post(application(engine, settings=TIGHT), CHAT, {**ASKED[CHAT], "prompt_logprobs": None, "stream": True})

    assert "[DONE]" == exchange.events()[-1]


async def test_answers_of_one_client_share_a_limit_and_others_go_on() -> None:
    engine = FakeEngine(filling)
    app = application(engine, settings=TIGHT)
    body = {"messages": MESSAGES}
    first = Call(app)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run, "POST", CHAT, json.dumps(body).encode())
        await engine.wait_opened()
        await trio.testing.wait_all_tasks_blocked()
        second = await post(app, CHAT, body)
        engine.streams[0].emit(text_delta("end", finish_reason=FinishReason.STOP), ended())

    assert (429, "too_many_bytes", "5") == (second.status, second.error()["code"], second.headers["retry-after"])
    assert (200, [], [AbortReason.OVER_BUDGET]) == (first.exchange.status, engine.streams[0].aborts, engine.streams[1].aborts)


async def test_all_answers_share_a_limit_that_is_a_503() -> None:
    engine = FakeEngine(filling)
    settings = attrs.evolve(TIGHT, max_unsent_answer_bytes=20_000)
    keys = ApiKeys.of([("alice", "a" * 20), ("bob", "b" * 20)])
    app = application(engine, settings=settings, keys=keys)
    body = json.dumps({"messages": MESSAGES}).encode()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Call(app).run, "POST", CHAT, body, {"authorization": "Bearer " + "a" * 20})
        await engine.wait_opened()
        await trio.testing.wait_all_tasks_blocked()
        refused = await post(app, CHAT, body, {"authorization": "Bearer " + "b" * 20})
        nursery.cancel_scope.cancel()

    assert (503, "server_full") == (refused.status, refused.error()["code"])


async def test_what_an_answer_held_is_free_when_it_is_over() -> None:
    engine = FakeEngine(answering(text_delta("x" * 15_000, finish_reason=FinishReason.STOP), ended()))
    app = application(engine, settings=TIGHT)

    assert [200] * 4 == [(await post(app, CHAT, {"messages": MESSAGES})).status for _ in range(4)]


@pytest.mark.parametrize("shape", [responses.CHAT, responses.COMPLETIONS])
def test_a_large_batch_of_a_stream_is_encoded_in_portions(shape: Shape) -> None:
    head = ResponseHead(id="x-1", created_s=1, model="m", fingerprint="fp_1")
    plan = AnswerPlan(
        shape=shape, head=head, prompts=1, choices_per_prompt=2, prompt_tokens=1, include_usage=False, continuous_usage=False
    )
    batch: Batch = ((0, told(3000)), (0, told(3000, choice=1)), (0, ended()))

    pieces = list(StreamedAnswer(plan).encode(batch))
    texts = [json.loads(event.removeprefix("data: ")) for event in b"".join(pieces).decode().split("\n\n")[:-2]]
    told_tokens = [
        len(choice["logprobs"].get("content", choice["logprobs"].get("tokens")))
        for chunk in texts
        for choice in chunk["choices"]
        if choice["logprobs"] is not None
    ]

    assert (6000, True) == (sum(told_tokens), len(pieces) >= 12)


async def test_a_stream_has_to_fit_its_clients_limit_with_what_it_does_not_take() -> None:
    engine = FakeEngine(filling)
    async with trio.open_nursery() as nursery:
        call = Call(application(engine, settings=TIGHT))
        nursery.start_soon(call.run, "POST", CHAT, json.dumps({"messages": MESSAGES, "stream": True}).encode())
        await engine.wait_opened()
        await trio.testing.wait_all_tasks_blocked()
        backlog = engine.streams[0].backlog
        assert backlog is not None
        assert [None, Over.ACCOUNT] == [backlog.take(19_000), backlog.take(2_000)]
        backlog.give_back(19_000)
        engine.streams[0].lose(BacklogFull)

    last = call.exchange.events()[-2]["error"]
    assert ("too_many_bytes", True) == (last["code"], "20000 bytes" in last["message"])
    assert [AbortReason.OVER_BUDGET] == engine.aborts


async def test_pieces_of_answers_leave_the_loop_as_much_time_as_they_take(autojump_clock: trio.testing.MockClock) -> None:
    fair_work, log = FairWork(), list[tuple[str, float]]()

    def work(name: str) -> None:
        autojump_clock.jump(2.0 if name == "long" else 0.004)
        log.append((name, trio.current_time()))

    async with trio.open_nursery() as nursery:
        for name in ("first", "long", "last"):
            nursery.start_soon(fair_work.in_turn, name, 1, partial(work, name))
    began = {name: at_s - (2.0 if name == "long" else 0.004) for name, at_s in log}
    ends = dict(log)
    rests = [began[behind] - ends[before] for (before, _), (behind, _) in pairwise(log)]
    assert [0.25 if name == "long" else 0.004 for name, _ in log][:-1] == pytest.approx(rests)
