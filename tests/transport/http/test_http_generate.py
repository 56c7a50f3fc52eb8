import json
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.stream import SampledLogprob, TokenLogprob
from layered_llm.domain.verdicts import RejectReason
from support.http_client import Call, application, post
from support.http_engine import FIRST_REQUEST, FakeEngine, FakeStream, accepting, answering, ended, text_delta

GENERATE = "/generate"
ID = f"gen-{FIRST_REQUEST:016x}"
STOP = {"type": "stop", "matched": 9}
TWO_STEPS = answering(
    text_delta("He", token_ids=(7, 8)), text_delta("y", token_ids=(9,), finish_reason=FinishReason.STOP), ended(cached_tokens=1)
)


def told(text: str, ids: list[int], finish_reason: object, *, cached_tokens: int = 1, public: str = ID) -> dict[str, Any]:
    counts = {"prompt_tokens": 3, "completion_tokens": len(ids), "cached_tokens": cached_tokens}
    matched = finish_reason.get("matched") if isinstance(finish_reason, dict) else None
    info = {"id": public, "finish_reason": finish_reason, "matched_stop": matched, **counts}
    return {"text": text, "output_ids": ids, "meta_info": info}


async def opened(body: dict[str, Any]) -> FakeStream:
    engine = FakeEngine(TWO_STEPS)
    assert 200 == (await post(application(engine), GENERATE, body)).status
    return engine.streams[0]


async def test_a_text_is_continued() -> None:
    exchange = await post(application(FakeEngine(TWO_STEPS)), GENERATE, {"text": "x"})

    assert told("Hey", [7, 8, 9], STOP) == exchange.json()


@pytest.mark.parametrize(
    ("delta", "ending"),
    [
        (text_delta("a", finish_reason=FinishReason.LENGTH), {"type": "length", "length": 1}),
        (text_delta("a", finish_reason=FinishReason.STOP, matched_stop="END"), {"type": "stop", "matched": "END"}),
        (text_delta("a", finish_reason=FinishReason.STOP, matched_stop=5), {"type": "stop", "matched": 5}),
        (text_delta("a", finish_reason=FinishReason.STOP), {"type": "stop", "matched": 7}),
    ],
)
async def test_the_finish_reason_says_what_ended_it(delta: Any, ending: dict[str, Any]) -> None:
    exchange = await post(application(FakeEngine(answering(delta, ended()))), GENERATE, {"text": "x"})

    info = exchange.json()["meta_info"]
    assert (ending, ending.get("matched")) == (info["finish_reason"], info["matched_stop"])


async def test_a_stream_has_the_whole_text_so_far_in_each_event() -> None:
    engine = FakeEngine(accepting)
    call = Call(application(engine))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", GENERATE, b'{"text": "x", "stream": true}')
        stream = await engine.wait_opened()
        stream.emit(text_delta("He", token_ids=(7, 8)))
        await wait_all_tasks_blocked()
        stream.emit(text_delta("y", token_ids=(9,), finish_reason=FinishReason.STOP), ended(cached_tokens=1))

    assert "text/event-stream; charset=utf-8" == call.exchange.headers["content-type"]
    assert [told("He", [7, 8], None, cached_tokens=0), told("Hey", [7, 8, 9], STOP), "[DONE]"] == call.exchange.events()


async def test_each_event_of_a_stream_has_the_log_probabilities_of_all_tokens_so_far() -> None:
    top = (TokenLogprob(token_id=3, token=b"b", logprob=-0.5),)
    one, two, three = (SampledLogprob(token_id=token, token=b"a", logprob=-1.0 * token, top=top) for token in (7, 8, 9))
    engine = FakeEngine(accepting)
    call = Call(application(engine))
    body = {"text": "x", "stream": True, "return_logprob": True, "top_logprobs_num": 1, "logprob_start_len": 1}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", GENERATE, json.dumps(body).encode())
        stream = await engine.wait_opened()
        stream.emit(text_delta("a", token_ids=(7,), logprobs=(one,), prompt_logprobs=(one, two)))
        await wait_all_tasks_blocked()
        stream.emit(text_delta("aa", token_ids=(8, 9), logprobs=(two, three), finish_reason=FinishReason.STOP), ended())

    infos = [event["meta_info"] for event in call.exchange.events()[:-1]]
    assert [[[-7.0, 7, None]], [[-7.0, 7, None], [-8.0, 8, None], [-9.0, 9, None]]] == [
        info["output_token_logprobs"] for info in infos
    ]
    assert [[[[-0.5, 3, None]]] * count for count in (1, 3)] == [info["output_top_logprobs"] for info in infos]
    assert [[[-8.0, 8, None]]] * 2 == [info["input_token_logprobs"] for info in infos]
    assert [[[[-0.5, 3, None]]]] * 2 == [info["input_top_logprobs"] for info in infos]


async def test_several_prompts_have_a_list_of_answers_with_ids_of_their_own() -> None:
    exchange = await post(application(FakeEngine(TWO_STEPS)), GENERATE, {"input_ids": [[1], [2, 3]]})

    ids = [answer["meta_info"]["id"] for answer in exchange.json()]
    assert [ID, f"gen-{FIRST_REQUEST + 1:016x}"] == ids


async def test_a_list_of_one_prompt_has_a_list_of_one_answer() -> None:
    exchange = await post(application(FakeEngine(TWO_STEPS)), GENERATE, {"text": ["x"]})

    assert [told("Hey", [7, 8, 9], STOP)] == exchange.json()


async def test_events_of_several_choices_have_an_index() -> None:
    script = answering(
        text_delta("a", choice=0, finish_reason=FinishReason.STOP),
        text_delta("b", choice=1, finish_reason=FinishReason.STOP),
        ended(),
    )

    exchange = await post(application(FakeEngine(script)), GENERATE, {"text": "x", "sampling_params": {"n": 2}, "stream": True})

    *events, done = exchange.events()
    assert [(0, "a", f"{ID}-0"), (1, "b", f"{ID}-1")] == [(e["index"], e["text"], e["meta_info"]["id"]) for e in events]
    assert "[DONE]" == done


async def test_the_parameters_have_sglangs_names() -> None:
    sampling = {
        "max_new_tokens": 5, "min_new_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1,
        "stop": ["a", "b"], "stop_token_ids": [4], "ignore_eos": True, "skip_special_tokens": False, "no_stop_trim": True,
        "repetition_penalty": 1.1, "sampling_seed": 3, "regex": None,
    }  # fmt: skip

    params = (await opened({"text": "x", "sampling_params": sampling})).params

    assert (5, 2, 0.5, 0.9, 0, 0.1) == (
        params.max_tokens, params.min_tokens, params.temperature, params.top_p, params.top_k, params.min_p
    )  # fmt: skip
    assert (("a", "b"), (4,), True, False, True) == (
        params.stop, params.stop_token_ids, params.ignore_eos, params.skip_special_tokens, params.include_stop_str_in_output
    )  # fmt: skip
    assert (1.1, 3) == (params.repetition_penalty, params.seed)


async def test_without_a_limit_it_is_sglangs() -> None:
    assert 128 == (await opened({"text": "x"})).params.max_tokens


async def test_ids_are_taken_for_a_text() -> None:
    stream = await opened({"input_ids": [5, 6]})

    assert [5, 6] == unpack_i32(stream.prompt.token_ids or b"").tolist()


async def test_mini_sglangs_body_is_sampled_greedily_and_streamed() -> None:
    engine = FakeEngine(TWO_STEPS)

    exchange = await post(application(engine), GENERATE, {"prompt": "x", "max_tokens": 4, "ignore_eos": True})

    params = engine.streams[0].params
    assert (4, True, True) == (params.max_tokens, params.ignore_eos, params.temperature == 0.0)
    assert [told("Hey", [7, 8, 9], STOP), "[DONE]"] == exchange.events()


async def test_log_probabilities_are_told_with_their_tokens() -> None:
    top = (TokenLogprob(token_id=3, token=b"b", logprob=-0.5), TokenLogprob(token_id=4, token=b"c", logprob=float("-inf")))
    sampled = SampledLogprob(token_id=7, token=b"a", logprob=-1.0, top=top)
    first = SampledLogprob(token_id=1, token=b"x", logprob=0.0, top=())
    second = SampledLogprob(token_id=2, token=b"y", logprob=-2.0, top=top)
    delta = text_delta("a", finish_reason=FinishReason.STOP, logprobs=(sampled,), prompt_logprobs=(first, second))
    engine = FakeEngine(answering(delta, ended()))
    body = {"text": "x", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": True}

    info = (await post(application(engine), GENERATE, body)).json()["meta_info"]

    tops = [[-0.5, 3, "b"], [-9999.0, 4, "c"]]
    assert [[-1.0, 7, "a"]] == info["output_token_logprobs"]
    assert [tops] == info["output_top_logprobs"]
    assert [[None, 1, "x"], [-2.0, 2, "y"]] == info["input_token_logprobs"]
    assert [None, tops] == info["input_top_logprobs"]
    assert (2, 2) == (engine.streams[0].params.logprobs, engine.streams[0].params.prompt_logprobs)


async def test_of_the_prompt_nothing_is_told_unless_a_start_is_named() -> None:
    exchange = await post(application(FakeEngine(TWO_STEPS)), GENERATE, {"text": "x", "return_logprob": True})

    info = exchange.json()["meta_info"]
    assert "output_token_logprobs" in info
    assert not {"input_token_logprobs", "input_top_logprobs", "output_top_logprobs"} & info.keys()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "x", "input_ids": [1]}, "text"),
        ({"text": 7}, "text"),
        ({"text": []}, "text"),
        ({"text": ["x", 1]}, "text[1]"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, [2]]}, "input_ids"),
        ({"input_ids": [[1], 2]}, "input_ids[1]"),
        ({"input_ids": [[]]}, "input_ids[0]"),
        ({"text": "x", "sampling_params": []}, "sampling_params"),
        ({"text": "x", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"text": "x", "sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens"),
        ({"text": "x", "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 8}}, "sampling_params.min_new_tokens"),
        ({"text": "x", "sampling_params": {"stop": ""}}, "sampling_params.stop"),
        ({"text": "x", "sampling_params": {"regex": "a"}}, "sampling_params.regex"),
        ({"text": "x", "sampling_params": {"json_schema": "{}"}}, "sampling_params.json_schema"),
        ({"text": "x", "sampling_params": {"n": 200}}, "sampling_params.n"),
        ({"text": ["x"] * 65, "sampling_params": {"n": 2}}, "text"),
        ({"text": "x", "image_data": "aGk="}, "image_data"),
        ({"text": "x", "lora_path": "a"}, "lora_path"),
        ({"text": "x", "token_ids_logprob": [1]}, "token_ids_logprob"),
        ({"text": "x", "stream": "yes"}, "stream"),
        ({"text": ["x", "y"], "rid": ["a"]}, "rid"),
        ({"text": ["x", "y"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": ["x", "y"], "sampling_params": [{}, {"temperature": 3}]}, "sampling_params[1].temperature"),
        ({"text": ["x", "y"], "sampling_params": [{}, {"min_new_tokens": 200}]}, "sampling_params[1].min_new_tokens"),
        ({"text": ["x", "y"], "sampling_params": [{}, {"n": 2}]}, "sampling_params"),
        ({"text": ["x", "y"], "sampling_params": [{}, None]}, "sampling_params[1]"),
        ({"text": ["x", "y"], "sampling_params": [{"regex": "a"}, {}]}, "sampling_params[0].regex"),
        ({"text": ["x", "y"], "return_logprob": [True]}, "return_logprob"),
        ({"text": ["x", "y"], "return_logprob": True, "logprob_start_len": [0, -2]}, "logprob_start_len[1]"),
        ({"text": ["x", "y"], "top_logprobs_num": []}, "top_logprobs_num"),
        ({"text": "x", "sampling_params": [{}]}, "sampling_params"),
        ({"input_ids": [1, 2], "return_logprob": [True, False]}, "return_logprob"),
        ({"text": "x", "rid": ""}, "rid"),
        ({"prompt": "x", "return_logprob": True}, "return_logprob"),
        ({"text": "x", "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"prompt": ["x"]}, "prompt"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "x", "sampling_params": {}}, "sampling_params"),
    ],
)
async def test_what_cannot_be_generated_is_a_400_that_names_the_member(body: dict[str, Any], param: str) -> None:
    engine = FakeEngine(TWO_STEPS)

    exchange = await post(application(engine), GENERATE, body)

    assert (400, param) == (exchange.status, exchange.error()["param"])
    assert [] == engine.streams


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_has_its_status_before_any_event(stream: bool) -> None:
    engine = FakeEngine(lambda opened: opened.reject(RejectReason.CONTEXT_LENGTH_EXCEEDED, "too long", "prompt"))

    exchange = await post(application(engine), GENERATE, {"text": "x", "stream": stream})

    assert (400, "context_length_exceeded") == (exchange.status, exchange.error()["code"])


async def test_a_failure_is_the_last_event_of_a_stream() -> None:
    script = answering(text_delta("a"), text_delta("", finish_reason=FinishReason.ERROR), ended(error="it broke"))

    exchange = await post(application(FakeEngine(script)), GENERATE, {"text": "x", "stream": True})

    *_, error, done = exchange.events()
    assert ("it broke", "[DONE]") == (error["error"]["message"], done)


async def test_a_failure_is_the_answer_of_a_request_that_is_not_streamed() -> None:
    script = answering(text_delta("", finish_reason=FinishReason.ERROR), ended(error="it broke"))

    exchange = await post(application(FakeEngine(script)), GENERATE, {"text": "x"})

    assert (500, "it broke") == (exchange.status, exchange.error()["message"])


async def test_a_client_that_leaves_aborts_every_prompt() -> None:
    engine = FakeEngine(accepting)
    call = Call(application(engine))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", GENERATE, b'{"text": ["x", "y"], "stream": true}')
        await engine.wait_opened(2)
        await wait_all_tasks_blocked()
        call.gone.set()

    assert [AbortReason.CLIENT_GONE] * 2 == engine.aborts


ABORTED = {"type": "abort", "message": "The request was ended by its id."}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_ended_by_its_id_has_the_text_so_far(stream: bool) -> None:
    engine = FakeEngine(accepting)
    app = application(engine)
    call = Call(app)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", GENERATE, json.dumps({"text": "x", "stream": stream}).encode())
        opened = await engine.wait_opened()
        opened.emit(text_delta("He", token_ids=(7, 8)))
        await wait_all_tasks_blocked()
        answer = await post(app, "/abort_request", {"rid": ID})

    whole = call.exchange.events()[-2] if stream else call.exchange.json()
    assert ({"aborted": 1}, 200) == (answer.json(), call.exchange.status)
    assert told("He", [7, 8], ABORTED, cached_tokens=0) == whole
    assert [AbortReason.ADMINISTRATIVE] == engine.aborts


async def test_the_other_prompts_go_on_when_one_is_ended_by_what_its_client_calls_it() -> None:
    engine = FakeEngine(accepting)
    app = application(engine)
    call = Call(app)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", GENERATE, b'{"text": ["x", "y"], "rid": ["a", "b"]}')
        first = await engine.wait_opened(2)
        await wait_all_tasks_blocked()
        await post(app, "/abort_request", {"rid": "b"})
        await wait_all_tasks_blocked()
        engine.streams[0].emit(text_delta("Hey", finish_reason=FinishReason.LENGTH), ended())

    assert first in engine.streams
    assert [("Hey", "length"), ("", "abort")] == [
        (one["text"], one["meta_info"]["finish_reason"]["type"]) for one in call.exchange.json()
    ]


async def test_one_prompt_of_several_can_be_ended_by_what_its_client_calls_it() -> None:
    engine = FakeEngine(accepting)
    app = application(engine)
    call = Call(app)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", GENERATE, b'{"text": ["x", "y"], "rid": ["a", "b"]}')
        await engine.wait_opened(2)
        await wait_all_tasks_blocked()
        answer = await post(app, "/abort_request", {"rid": "b"})
        call.gone.set()

    assert {"aborted": 1} == answer.json()
    assert [[], [AbortReason.ADMINISTRATIVE]] == [
        [reason for reason in stream.aborts if reason is AbortReason.ADMINISTRATIVE] for stream in engine.streams
    ]


async def test_restrictions_of_the_tokens_reach_the_sampling() -> None:
    engine = FakeEngine(TWO_STEPS)
    asked = {"allowed_token_ids": [4, 5], "bad_words": ["x", "y z"], "top_n_sigma": 1.5}

    await post(application(engine), GENERATE, {"text": "x", "sampling_params": asked})

    params = engine.streams[0].params
    assert ((4, 5), ("x", "y z"), 1.5) == (params.allowed_token_ids, params.bad_words, params.top_n_sigma)


async def test_a_batch_has_a_value_for_each_of_its_prompts() -> None:
    engine = FakeEngine(TWO_STEPS)
    body = {
        "input_ids": [[1], [2], [3]],
        "sampling_params": [{"temperature": 0}, {"max_new_tokens": 5, "sampling_seed": 9}, {}],
        "return_logprob": [False, True, True],
        "logprob_start_len": [-1, 0, -1],
        "top_logprobs_num": [0, 2, 3],
    }

    exchange = await post(application(engine), GENERATE, body)

    params = [stream.params for stream in engine.streams]
    assert [(0, 128), (None, 5), (None, 128)] == [(each.temperature, each.max_tokens) for each in params]
    assert [(None, None), (2, 2), (3, None)] == [(each.logprobs, each.prompt_logprobs) for each in params]
    assert 9 == params[1].seed
    told_of = [{name for name in one["meta_info"] if name.endswith("logprobs")} for one in exchange.json()]
    output, prompt = {"output_token_logprobs", "output_top_logprobs"}, {"input_token_logprobs", "input_top_logprobs"}
    assert [set(), output | prompt, output] == told_of


async def test_one_id_for_a_batch_is_the_beginning_of_each() -> None:
    exchange = await post(application(FakeEngine(TWO_STEPS)), GENERATE, {"text": ["x", "y"], "rid": "a"})

    assert ["a_0", "a_1"] == [one["meta_info"]["id"] for one in exchange.json()]
