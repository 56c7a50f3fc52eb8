import json
import logging

import attrs
import pytest
import trio
import trio.testing
from openai.types.chat import ChatCompletion
from openai.types.completion import Completion
from trio.testing import MockClock

from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import EnginePhase
from layered_llm.domain.verdicts import RejectReason
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.exchange.public_ids import public_id, request_of
from support.http_client import CHAT, COMPLETIONS, CREATED_S, MESSAGES, SETTINGS, Call, application, post
from support.http_engine import FIRST_REQUEST, READY, FakeEngine, FakeStream, accepting, answering, ended, text_delta

STOP = text_delta("!", token_ids=(2,), finish_reason=FinishReason.STOP)
CHAT_BODY = {"messages": MESSAGES}


async def test_a_chat_completion_is_valid_and_complete() -> None:
    engine = FakeEngine(answering(text_delta("Hel"), text_delta("lo"), STOP, ended()))

    exchange = await post(application(engine), CHAT, CHAT_BODY)

    assert exchange.status == 200
    assert exchange.headers["content-type"] == "application/json"
    parsed = ChatCompletion.model_validate(exchange.json())
    assert exchange.json() == {
        "id": f"chatcmpl-{FIRST_REQUEST:016x}",
        "object": "chat.completion",
        "created": CREATED_S,
        "model": "small",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "system_fingerprint": "fp_0",
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    assert parsed.choices[0].message.content == "Hello!"


async def test_a_completion_has_a_choice_for_each_prompt_and_each_n() -> None:
    def script(stream: FakeStream) -> None:
        place = stream.request - FIRST_REQUEST
        ends = [text_delta(f"{place}{k}", choice=k, finish_reason=FinishReason.LENGTH) for k in (1, 0)]
        answering(*ends, ended())(stream)

    exchange = await post(application(FakeEngine(script)), COMPLETIONS, {"prompt": [[1], [2]], "n": 2})

    parsed = Completion.model_validate(exchange.json())
    assert [(c.index, c.text, c.finish_reason) for c in parsed.choices] == [
        (0, "00", "length"),
        (1, "01", "length"),
        (2, "10", "length"),
        (3, "11", "length"),
    ]
    assert (parsed.object, exchange.json()["usage"]["prompt_tokens"]) == ("text_completion", 6)


@pytest.mark.parametrize("matched", ["###", 42, None])
async def test_the_matched_stop_is_told(matched: str | int | None) -> None:
    end = text_delta("", finish_reason=FinishReason.STOP, matched_stop=matched)

    exchange = await post(application(FakeEngine(answering(end, ended()))), CHAT, CHAT_BODY)

    assert exchange.json()["choices"][0]["stop_reason"] == matched


async def test_the_engine_gets_the_prompt_and_the_seed_that_the_client_gave() -> None:
    engine = FakeEngine(answering(STOP, ended()))
    await post(application(engine), COMPLETIONS, {"prompt": "x"})
    await post(application(engine), COMPLETIONS, {"prompt": "x", "seed": 5})

    assert [stream.params.seed for stream in engine.streams] == [None, 5]
    assert engine.streams[0].prompt == Prompt.of_text("x")


async def test_a_completed_request_leaves_no_abort() -> None:
    engine = FakeEngine(answering(STOP, ended()))

    await post(application(engine), CHAT, CHAT_BODY)

    assert engine.aborts == []


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (RejectReason.TEMPLATE_ERROR, 400, "template_error"),
        (RejectReason.NO_CHAT_TEMPLATE, 400, "no_chat_template"),
        (RejectReason.CONTEXT_LENGTH_EXCEEDED, 400, "context_length_exceeded"),
        (RejectReason.NEVER_FITS, 400, "context_length_exceeded"),
        (RejectReason.EMPTY_PROMPT, 400, "empty_prompt"),
        (RejectReason.TOKEN_OUT_OF_VOCABULARY, 400, "token_out_of_vocabulary"),
        (RejectReason.INVALID_PARAMETER, 400, "invalid_parameter"),
        (RejectReason.QUEUE_FULL, 429, "queue_full"),
        (RejectReason.TOO_MANY_STREAMS, 429, "too_many_streams"),
        (RejectReason.SERVER_FULL, 429, "server_full"),
        (RejectReason.SHUTTING_DOWN, 503, "shutting_down"),
        (RejectReason.NOT_READY, 503, "engine_not_ready"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_rejection_has_its_status(reason: RejectReason, status: int, code: str, stream: bool) -> None:
    engine = FakeEngine(lambda opened: opened.reject(reason, "why not", "prompt"))

    exchange = await post(application(engine), COMPLETIONS, {"prompt": "x", "stream": stream})

    assert (exchange.status, exchange.error()["code"]) == (status, code)
    assert ("retry-after" in exchange.headers) is reason.is_retryable
    assert exchange.headers.get("x-should-retry") == ("true" if reason.is_retryable else None)
    assert engine.aborts == []


async def test_a_full_engine_refuses_at_once_and_keeps_no_prompt_of_the_body() -> None:
    engine = FakeEngine(accepting)
    app = application(engine)

    def fill(stream: FakeStream) -> None:
        stream.accept()
        engine.full = True

    engine.script = fill
    exchange = await post(app, COMPLETIONS, {"prompt": ["a", "b"]})

    assert (exchange.status, exchange.headers["retry-after"]) == (429, "5")
    assert engine.aborts == [AbortReason.SIBLING_REJECTED]


async def test_one_rejected_prompt_refuses_the_body_and_aborts_the_others() -> None:
    def script(stream: FakeStream) -> None:
        if stream.request == FIRST_REQUEST:
            stream.accept()
        else:
            stream.reject(RejectReason.EMPTY_PROMPT)

    engine = FakeEngine(script)

    exchange = await post(application(engine), COMPLETIONS, {"prompt": ["a", "", "c"]})

    assert exchange.status == 400
    assert [stream.aborts for stream in engine.streams] == [[AbortReason.SIBLING_REJECTED], [], []]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["lost", "failed"])
async def test_the_other_prompts_of_a_body_that_fails_in_the_server_are_left_for_that(stream: bool, how: str) -> None:
    def script(opened: FakeStream) -> None:
        opened.accept()
        if opened.request != FIRST_REQUEST:
            return
        if how == "lost":
            opened.is_over = True
            opened.lose()
        else:
            opened.emit(text_delta("", finish_reason=FinishReason.ERROR), ended(error="it broke"))

    engine = FakeEngine(script)

    await post(application(engine), COMPLETIONS, {"prompt": ["a", "b"], "stream": stream})

    assert [AbortReason.SERVER_FAILED] == engine.streams[1].aborts


@pytest.mark.parametrize("phase", [EnginePhase.STARTING, EnginePhase.RESTARTING, EnginePhase.FAILED, EnginePhase.STOPPING])
async def test_an_engine_that_is_not_ready_is_503_with_a_word_on_when(phase: EnginePhase) -> None:
    engine = FakeEngine(current=attrs.evolve(READY, phase=phase, detail="loading 10 %"))

    exchange = await post(application(engine), CHAT, CHAT_BODY)

    assert exchange.status == 503
    assert "loading 10 %" in exchange.error()["message"]
    assert exchange.headers["x-should-retry"] == ("false" if phase is EnginePhase.FAILED else "true")
    assert ("retry-after" in exchange.headers) is (phase is not EnginePhase.FAILED)
    assert engine.streams == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_lost_before_the_headers_is_a_503_that_may_be_repeated(stream: bool) -> None:
    engine = FakeEngine(FakeStream.lose)

    exchange = await post(application(engine), CHAT, {**CHAT_BODY, "stream": stream})

    assert (exchange.status, exchange.error()["code"]) == (503, "engine_lost")
    assert exchange.headers["x-should-retry"] == "true"


async def test_an_engine_lost_in_the_middle_of_a_whole_response_is_a_503() -> None:
    def script(stream: FakeStream) -> None:
        answering(text_delta("a"))(stream)
        stream.lose()

    exchange = await post(application(FakeEngine(script)), CHAT, CHAT_BODY)

    assert exchange.status == 503


async def test_a_request_that_fails_in_the_engine_is_a_500_that_is_not_repeated() -> None:
    engine = FakeEngine(answering(text_delta("", finish_reason=FinishReason.ERROR), ended(error="out of pages")))

    exchange = await post(application(engine), CHAT, CHAT_BODY)

    error = exchange.error()
    assert (exchange.status, error["message"], error["code"]) == (500, "out of pages", "logits_not_finite")
    assert exchange.headers["x-should-retry"] == "false"


async def test_an_unexpected_error_is_a_500_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    def script(_stream: FakeStream) -> None:
        raise ZeroDivisionError("secret")

    engine = FakeEngine(script)
    with caplog.at_level(logging.ERROR):
        exchange = await post(application(engine), CHAT, CHAT_BODY)

    assert (exchange.status, exchange.error()["code"]) == (500, "internal_error")
    assert "secret" not in exchange.body.decode()
    assert "secret" in caplog.text
    assert engine.aborts == [AbortReason.CLIENT_GONE]


async def test_a_choice_without_a_reason_after_the_end_is_our_fault(caplog: pytest.LogCaptureFixture) -> None:
    exchange = await post(application(FakeEngine(answering(text_delta("a"), ended()))), CHAT, CHAT_BODY)

    assert exchange.status == 500
    assert "InvariantViolated" in caplog.text


async def test_an_unknown_model_is_a_404_that_lists_the_served_ones() -> None:
    exchange = await post(application(FakeEngine()), CHAT, {**CHAT_BODY, "model": "gpt-9"})

    assert (exchange.status, exchange.error()["code"], exchange.error()["param"]) == (404, "model_not_found", "model")
    assert "'small', 'little'" in exchange.error()["message"]


async def test_any_model_name_is_echoed_where_that_is_allowed() -> None:
    app = application(FakeEngine(answering(STOP, ended())), settings=attrs.evolve(SETTINGS, any_model_name=True))

    exchange = await post(app, CHAT, {**CHAT_BODY, "model": "gpt-9"})

    assert exchange.json()["model"] == "gpt-9"


async def test_new_requests_are_refused_in_a_drain() -> None:
    drain, engine = Drain(2.0), FakeEngine(accepting)
    drain.begin()

    exchange = await post(application(engine, drain=drain), CHAT, CHAT_BODY)

    assert (exchange.status, exchange.error()["code"]) == (503, "shutting_down")
    assert engine.streams == []


@pytest.mark.parametrize("script", [None, accepting])
async def test_a_whole_response_that_the_drain_cuts_is_a_503(script: object, autojump_clock: MockClock) -> None:
    drain, engine = Drain(2.0), FakeEngine(script)  # type: ignore[arg-type] # a pytest parameter
    async with trio.open_nursery() as nursery:
        call = Call(application(engine, drain=drain))
        nursery.start_soon(call.run, "POST", CHAT, json.dumps(CHAT_BODY).encode())
        await engine.wait_opened()
        drain.begin()

    assert call.exchange.status == 503
    assert trio.current_time() == pytest.approx(2.0)
    assert engine.aborts == [AbortReason.SHUTDOWN]


def test_a_public_id_names_its_request() -> None:
    request = RequestId(FIRST_REQUEST)

    assert [request_of(public_id(prefix, request)) for prefix in ("chatcmpl", "cmpl")] == [request] * 2
    assert [request_of(text) for text in ("", "chatcmpl-", "chatcmpl-12", "resp-0000000000000001")] == [None] * 4
