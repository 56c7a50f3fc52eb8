import json
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from openai.types.chat import ChatCompletionChunk
from openai.types.completion import Completion
from trio.testing import MockClock

from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.verdicts import RejectReason
from layered_llm.transport.http.exchange.drain import Drain
from support.http_client import CHAT, COMPLETIONS, CREATED_S, MESSAGES, SETTINGS, Call, application, post
from support.http_engine import FIRST_REQUEST, FakeEngine, FakeStream, accepting, answering, ended, text_delta

STOP = text_delta("", token_ids=(2,), finish_reason=FinishReason.STOP)
CHAT_BODY = {"messages": MESSAGES, "stream": True}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


def choices(events: list[Any]) -> list[Any]:
    return [event["choices"][0] for event in events if event != "[DONE]" and event["choices"]]


async def test_a_chat_stream_is_role_then_texts_then_an_empty_delta_with_the_reason_then_done() -> None:
    engine = FakeEngine(answering(text_delta("Hel"), text_delta("lo"), STOP, ended()))

    exchange = await post(application(engine), CHAT, CHAT_BODY)

    assert exchange.status == 200
    assert exchange.is_complete
    assert exchange.events()[-1] == "[DONE]"
    assert [(choice["delta"], choice["finish_reason"]) for choice in choices(exchange.events())] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Hel"}, None),
        ({"content": "lo"}, None),
        ({}, "stop"),
    ]


async def test_every_chunk_has_the_same_id_time_and_model_and_is_valid() -> None:
    engine = FakeEngine(answering(text_delta("a"), STOP, ended()))

    exchange = await post(application(engine), CHAT, {**CHAT_BODY, "model": "little"})

    chunks = [ChatCompletionChunk.model_validate(event) for event in exchange.events()[:-1]]
    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {
        (f"chatcmpl-{FIRST_REQUEST:016x}", CREATED_S, "little")
    }
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


async def test_nothing_of_usage_is_sent_unless_asked_for() -> None:
    engine = FakeEngine(answering(text_delta("a"), STOP, ended()))

    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        exchange = await post(application(engine), CHAT, {**CHAT_BODY, "stream_options": options})

        assert all("usage" not in event and event["choices"] for event in exchange.events()[:-1])


async def test_usage_is_one_last_chunk_without_choices_and_null_in_the_others() -> None:
    engine = FakeEngine(answering(text_delta("a"), STOP, ended()))

    exchange = await post(application(engine), CHAT, {**CHAT_BODY, "stream_options": {"include_usage": True}})

    *others, last, done = exchange.events()
    assert done == "[DONE]"
    assert {event["usage"] for event in others} == {None}
    assert (last["choices"], last["usage"]) == ([], USAGE)


async def test_running_usage_counts_the_tokens_so_far() -> None:
    engine = FakeEngine(answering(text_delta("a"), text_delta("b"), STOP, ended()))
    options = {"include_usage": True, "continuous_usage_stats": True}

    exchange = await post(application(engine), COMPLETIONS, {"prompt": "x", "stream": True, "stream_options": options})

    assert [event["usage"]["completion_tokens"] for event in exchange.events()[:-1]] == [1, 2, 3, 2]


async def test_the_running_usage_of_a_chat_counts_each_token_once() -> None:
    """The role comes before any token, and the last text and the reason in one chunk."""
    engine = FakeEngine(
        answering(
            text_delta("a", token_ids=(1,)),
            text_delta("b", token_ids=(2, 3)),
            text_delta("c", token_ids=(4,), finish_reason=FinishReason.LENGTH),
            ended(completion_tokens=4),
        )
    )
    options = {"include_usage": True, "continuous_usage_stats": True}

    exchange = await post(application(engine), CHAT, {**CHAT_BODY, "stream": True, "stream_options": options})

    told = [(event["usage"]["completion_tokens"], event["choices"]) for event in exchange.events()[:-2]]
    assert [0, 1, 3, 4] == [tokens for tokens, _ in told]
    assert ("c", "length") == (told[-1][1][0]["delta"]["content"], told[-1][1][0]["finish_reason"])


async def test_the_role_comes_with_the_first_output_and_not_before() -> None:
    engine = FakeEngine(accepting)
    async with trio.open_nursery() as nursery:
        call = Call(application(engine))
        nursery.start_soon(call.run, "POST", CHAT, json.dumps(CHAT_BODY).encode())
        stream = await engine.wait_opened()
        await trio.testing.wait_all_tasks_blocked()

        assert call.exchange.status == 200
        assert call.exchange.sends == []

        stream.emit(text_delta(""))
        await trio.testing.wait_all_tasks_blocked()

        assert choices(call.exchange.events())[0]["delta"] == {"role": "assistant", "content": ""}
        nursery.cancel_scope.cancel()


async def test_each_choice_has_its_own_role_and_reason() -> None:
    engine = FakeEngine(
        answering(
            text_delta("x", choice=1),
            text_delta("y", choice=0),
            text_delta("", choice=0, finish_reason=FinishReason.LENGTH),
            text_delta("", choice=1, finish_reason=FinishReason.STOP, matched_stop="end"),
            ended(),
        )
    )

    exchange = await post(application(engine), CHAT, {**CHAT_BODY, "n": 2})

    seen = choices(exchange.events())
    assert [choice["index"] for choice in seen if "role" in choice["delta"]] == [1, 0]
    assert [(c["index"], c["finish_reason"], c["stop_reason"]) for c in seen if c["finish_reason"]] == [
        (0, "length", None),
        (1, "stop", "end"),
    ]


async def test_all_that_is_queued_goes_out_in_one_send() -> None:
    engine = FakeEngine(answering(text_delta("a"), text_delta("b"), STOP, ended()))

    exchange = await post(application(engine), CHAT, CHAT_BODY)

    assert len(exchange.sends) == 1


async def test_completion_chunks_are_whole_completions() -> None:
    engine = FakeEngine(answering(text_delta("a"), STOP, ended()))

    exchange = await post(application(engine), COMPLETIONS, {"prompt": "x", "stream": True})

    *chunks, done = exchange.events()
    assert done == "[DONE]"
    assert {(chunk["object"], chunk["id"]) for chunk in chunks} == {("text_completion", f"cmpl-{FIRST_REQUEST:016x}")}
    Completion.model_validate(chunks[-1])
    assert [(c["text"], c["finish_reason"]) for c in choices(exchange.events())] == [("a", None), ("", "stop")]


async def test_several_prompts_share_one_stream_by_index_and_sum_their_usage() -> None:
    def script(stream: FakeStream) -> None:
        place = stream.request - FIRST_REQUEST
        events = [text_delta(f"{place}{k}", choice=k, finish_reason=FinishReason.LENGTH) for k in range(stream.params.n)]
        answering(*events, ended())(stream)

    body = {"prompt": ["a", "b", "c"], "n": 2, "stream": True, "stream_options": {"include_usage": True}}

    exchange = await post(application(FakeEngine(script)), COMPLETIONS, body)

    texts = {c["index"]: c["text"] for c in choices(exchange.events()) if c["text"]}
    assert texts == {0: "00", 1: "01", 2: "10", 3: "11", 4: "20", 5: "21"}
    assert exchange.events()[-2]["usage"]["total_tokens"] == 15
    assert len({event["id"] for event in exchange.events()[:-1]}) == 1


async def test_stream_headers_suit_proxies_and_browsers() -> None:
    exchange = await post(application(FakeEngine(answering(STOP, ended()))), CHAT, CHAT_BODY)

    assert exchange.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert exchange.headers["cache-control"] == "no-store"
    assert exchange.headers["x-accel-buffering"] == "no"
    assert "content-length" not in exchange.headers


async def test_text_of_any_script_arrives_as_it_is() -> None:
    text = 'Grüße \u2028 "\n\r\n\n" 👩\u200d🚀 \x00'
    exchange = await post(application(FakeEngine(answering(text_delta(text), STOP, ended()))), CHAT, CHAT_BODY)

    assert choices(exchange.events())[1]["delta"]["content"] == text


async def test_a_comment_is_sent_in_each_silence(autojump_clock: MockClock) -> None:
    engine = FakeEngine(accepting)
    async with trio.open_nursery() as nursery:
        call = Call(application(engine))
        nursery.start_soon(call.run, "POST", CHAT, json.dumps(CHAT_BODY).encode())
        stream = await engine.wait_opened()

        await trio.sleep(SETTINGS.heartbeat_interval_s * 2.5)

        assert call.exchange.sends == [b": ping\n\n"] * 2
        stream.emit(STOP, ended())
    assert call.exchange.events()[-1] == "[DONE]"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_lost_engine_ends_the_stream_with_an_error_and_done(path: str) -> None:
    def script(stream: FakeStream) -> None:
        answering(text_delta("a"))(stream)
        stream.lose()

    body = {"messages": MESSAGES} if path == CHAT else {"prompt": "x"}

    exchange = await post(application(FakeEngine(script)), path, {**body, "stream": True})

    *_, error, done = exchange.events()
    assert exchange.is_complete
    assert (error["error"]["code"], done) == ("engine_lost", "[DONE]")


async def test_a_request_that_fails_ends_its_stream_with_the_engines_words() -> None:
    engine = FakeEngine(
        answering(text_delta("a"), text_delta("", finish_reason=FinishReason.ERROR), ended(error="out of pages"))
    )

    exchange = await post(application(engine), CHAT, CHAT_BODY)

    error = exchange.events()[-2]["error"]
    assert (error["message"], error["code"]) == ("out of pages", "logits_not_finite")
    assert [c["finish_reason"] for c in choices(exchange.events()[:-2])] == [None, None]


async def test_an_abort_by_the_server_is_an_error_and_no_finish_reason_of_its_own() -> None:
    engine = FakeEngine(answering(text_delta("", finish_reason=FinishReason.ABORT), ended()))

    exchange = await post(application(engine), CHAT, CHAT_BODY)

    assert exchange.events()[-2]["error"]["type"] == "server_error"


@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
async def test_an_unexpected_error_is_told_and_logged_and_the_rest_is_aborted(
    prompt: object, caplog: pytest.LogCaptureFixture
) -> None:
    def script(stream: FakeStream) -> None:
        stream.accept()
        if stream.request == FIRST_REQUEST:
            stream.emit_error(ZeroDivisionError("boom"))

    engine = FakeEngine(script)

    exchange = await post(application(engine), COMPLETIONS, {"prompt": prompt, "stream": True})

    error, done = exchange.events()
    assert (error["error"]["code"], done) == ("internal_error", "[DONE]")
    assert "boom" not in exchange.body.decode()
    assert "boom" in caplog.text
    assert engine.aborts == [AbortReason.SERVER_FAILED] * len(engine.streams)


async def test_a_failing_prompt_ends_the_whole_stream_and_aborts_the_others() -> None:
    def script(stream: FakeStream) -> None:
        stream.accept()
        if stream.request != FIRST_REQUEST:
            stream.emit(ended(error="bad"))

    engine = FakeEngine(script)

    exchange = await post(application(engine), COMPLETIONS, {"prompt": ["a", "b"], "stream": True})

    assert exchange.events()[0]["error"]["message"] == "bad"
    assert [stream.aborts for stream in engine.streams] == [[AbortReason.SERVER_FAILED], []]


async def test_a_rejected_stream_has_the_status_of_the_rejection() -> None:
    def script(stream: FakeStream) -> None:
        stream.reject(RejectReason.CONTEXT_LENGTH_EXCEEDED, "3000 tokens, at most 2048", "messages")

    exchange = await post(application(FakeEngine(script)), CHAT, CHAT_BODY)

    assert exchange.status == 400
    assert exchange.error()["code"] == "context_length_exceeded"


async def test_open_streams_go_on_through_a_drain_and_are_told_when_it_ends(autojump_clock: MockClock) -> None:
    engine, drain = FakeEngine(accepting), Drain(2.0)
    app = application(engine, settings=attrs.evolve(SETTINGS, heartbeat_interval_s=15.0), drain=drain)
    async with trio.open_nursery() as nursery:
        call = Call(app)
        nursery.start_soon(call.run, "POST", CHAT, json.dumps(CHAT_BODY).encode())
        stream = await engine.wait_opened()
        await trio.testing.wait_all_tasks_blocked()
        drain.begin()
        start = trio.current_time()
        await trio.sleep(1.0)
        stream.emit(text_delta("still here"))

    *_, error, done = call.exchange.events()
    assert trio.current_time() - start == pytest.approx(2.0)
    assert choices(call.exchange.events()[:-2])[1]["delta"] == {"content": "still here"}
    assert (error["error"]["code"], done) == ("shutting_down", "[DONE]")
    assert stream.aborts == [AbortReason.SHUTDOWN]
