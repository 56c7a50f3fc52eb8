import json
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from layered_llm.domain.columns import pack_i32, unpack_i32
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.messages.api_text import (
    MAX_TOLD_TOKENS,
    Detokenize,
    Rejected,
    TextQuestion,
    Tokenize,
    Tokenized,
    TokenizerDescribed,
)
from layered_llm.domain.messages.supervision import EnginePhase
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.domain.verdicts import RejectReason
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.vllm.tokenizer import MOST_TOKENS_AT_ONCE
from support.http_client import MESSAGES, Call, application, get, post
from support.http_engine import READY, FakeEngine, telling

TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"


def refusing(reason: RejectReason) -> FakeEngine:
    def refuse(question: TextQuestion) -> Rejected:
        return Rejected(request=question.request, reason=reason, message="no", param="prompt")

    return FakeEngine(answerer=refuse)


async def asked(path: str, body: dict[str, Any]) -> TextQuestion:
    engine = FakeEngine(answerer=telling)
    assert 200 == (await post(application(engine), path, body)).status
    return engine.questions[0].question


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
async def test_tokens_are_told_with_their_count_and_the_context(path: str) -> None:
    exchange = await post(application(FakeEngine(answerer=telling)), path, {"prompt": "a b"})

    assert {"count": 2, "max_model_len": 2048, "tokens": [5, 6], "token_strs": None} == exchange.json()


async def test_spellings_are_told_when_asked_for() -> None:
    exchange = await post(application(FakeEngine(answerer=telling)), TOKENIZE, {"prompt": "a b", "return_token_strs": True})

    assert ["a", "Ġb"] == exchange.json()["token_strs"]


@pytest.mark.parametrize("count", [MOST_TOKENS_AT_ONCE, MOST_TOKENS_AT_ONCE + 1, 3 * MOST_TOKENS_AT_ONCE])
async def test_many_tokens_are_told_in_their_order(count: int) -> None:
    spellings = tuple(f'"{token}' for token in range(count))

    def answerer(question: TextQuestion) -> Tokenized:
        return Tokenized(request=question.request, token_ids=pack_i32(range(count)), spellings=spellings)

    exchange = await post(application(FakeEngine(answerer=answerer)), TOKENIZE, {"prompt": "x"})

    told = {"count": count, "max_model_len": 2048, "tokens": list(range(count)), "token_strs": list(spellings)}
    assert told == exchange.json()


@pytest.mark.parametrize("given", [None, True, False])
async def test_a_text_is_asked_for_with_or_without_the_tokenizers_own_tokens(given: bool | None) -> None:
    question = await asked(TOKENIZE, {"prompt": "a b", "add_special_tokens": given})

    assert isinstance(question, Tokenize)
    assert ("a b", given) == (question.prompt.text, question.prompt.add_special_tokens)


async def test_a_conversation_is_rendered_as_the_body_says() -> None:
    question = await asked(
        TOKENIZE, {"messages": MESSAGES, "add_generation_prompt": False, "chat_template_kwargs": {"enable_thinking": False}}
    )

    assert isinstance(question, Tokenize)
    assert "hi" == (question.prompt.chat or ())[0].content
    assert not question.prompt.rendering.add_generation_prompt
    assert {"enable_thinking": False} == json.loads(question.prompt.rendering.variables or "")


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
async def test_the_text_of_tokens_is_the_prompt(path: str) -> None:
    engine = FakeEngine(answerer=telling)

    exchange = await post(application(engine), path, {"tokens": [5, 6]})

    assert {"prompt": "a bé"} == exchange.json()
    question = engine.questions[0].question
    assert isinstance(question, Detokenize)
    assert ([5, 6], False) == (unpack_i32(question.token_ids).tolist(), question.skip_special_tokens)


async def test_the_description_is_the_checkpoints_own() -> None:
    exchange = await get(application(FakeEngine(answerer=telling)), "/tokenizer_info")

    assert {"eos_token": "</s>", "chat_template": None} == exchange.json()


async def test_the_description_is_sent_as_it_was_prepared() -> None:
    """It may be a megabyte, and the loop's time is everybody's."""
    config = '{"a":  1, "a": 2}'
    engine = FakeEngine(answerer=lambda question: TokenizerDescribed(request=question.request, config=config))
    exchange = await get(application(engine), "/tokenizer_info")

    assert (config, "application/json") == (exchange.body.decode(), exchange.headers["content-type"])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"text": "x"}, "prompt"),
        (TOKENIZE, {"prompt": 7}, "prompt"),
        (TOKENIZE, {"prompt": ["a"]}, "prompt"),
        (TOKENIZE, {"prompt": "a", "messages": MESSAGES}, "prompt"),
        (TOKENIZE, {"messages": []}, "messages"),
        (TOKENIZE, {"prompt": "\ud800"}, "prompt"),
        (TOKENIZE, {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        (TOKENIZE, {"messages": MESSAGES, "chat_template": "{{ 1 }}"}, "chat_template"),
        (TOKENIZE, {"messages": MESSAGES, "tools": [{}]}, "tools"),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": "abc"}, "tokens"),
        (DETOKENIZE, {"tokens": [1, "2"]}, "tokens"),
        (DETOKENIZE, {"tokens": [1, True]}, "tokens"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens"),
        (DETOKENIZE, {"tokens": [1 << 31]}, "tokens"),
        (DETOKENIZE, {"tokens": [0] * (MAX_TOLD_TOKENS + 1)}, "tokens"),
        (DETOKENIZE, {"tokens": [1], "skip_special_tokens": "no"}, "skip_special_tokens"),
    ],
)
async def test_a_body_that_cannot_be_asked_is_a_400_and_asks_nothing(path: str, body: dict[str, Any], param: str) -> None:
    engine = FakeEngine(answerer=telling)

    exchange = await post(application(engine), path, body)

    assert (400, param) == (exchange.status, exchange.error()["param"])
    assert [] == engine.questions


@pytest.mark.parametrize("path", [TOKENIZE, DETOKENIZE])
async def test_a_body_that_is_no_json_is_a_400(path: str) -> None:
    exchange = await post(application(FakeEngine(answerer=telling)), path, b"{")

    assert (400, "invalid_json") == (exchange.status, exchange.error()["code"])


async def test_an_unknown_model_is_a_404() -> None:
    exchange = await post(application(FakeEngine(answerer=telling)), TOKENIZE, {"prompt": "a", "model": "other"})

    assert (404, "model_not_found") == (exchange.status, exchange.error()["code"])


@pytest.mark.parametrize(
    ("reason", "status"),
    [(RejectReason.TEMPLATE_ERROR, 400), (RejectReason.INVALID_PARAMETER, 400), (RejectReason.QUEUE_FULL, 429)],
)
async def test_a_refusal_has_its_status(reason: RejectReason, status: int) -> None:
    exchange = await post(application(refusing(reason)), TOKENIZE, {"prompt": "a"})

    assert (status, reason.name.lower()) == (exchange.status, exchange.error()["code"])


async def test_a_process_with_no_room_is_a_429() -> None:
    exchange = await post(application(FakeEngine(full=True)), TOKENIZE, {"prompt": "a"})

    assert (429, "5") == (exchange.status, exchange.headers["retry-after"])


async def test_nothing_is_asked_of_an_engine_that_is_not_ready() -> None:
    engine = FakeEngine(current=attrs.evolve(READY, phase=EnginePhase.RESTARTING))

    assert 503 == (await get(application(engine), "/tokenizer_info")).status
    assert [] == engine.questions


async def test_an_engine_that_dies_with_the_question_is_a_503() -> None:
    exchange = await post(application(FakeEngine(answerer=lambda _: EngineLost())), TOKENIZE, {"prompt": "a"})

    assert (503, "engine_lost") == (exchange.status, exchange.error()["code"])


async def test_a_client_that_leaves_takes_its_question_along() -> None:
    engine = FakeEngine()
    call = Call(application(engine))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", TOKENIZE, b'{"prompt": "a"}')
        await wait_all_tasks_blocked()
        call.gone.set()

    assert [AbortReason.CLIENT_GONE] == engine.questions[0].aborts
    assert 0 == call.exchange.status


async def test_a_question_that_outlasts_the_drain_is_a_503(autojump_clock: MockClock) -> None:
    engine, drain = FakeEngine(), Drain(2.0)
    call = Call(application(engine, drain=drain))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", TOKENIZE, b'{"prompt": "a"}')
        await wait_all_tasks_blocked()
        drain.begin()

    assert (503, "shutting_down") == (call.exchange.status, call.exchange.error()["code"])
    assert [AbortReason.SHUTDOWN] == engine.questions[0].aborts


async def test_a_body_for_another_server_is_told_what_is_required() -> None:
    exchange = await post(application(FakeEngine()), TOKENIZE, {"text": "x"})

    assert exchange.error()["message"].startswith("prompt is required")
