import functools
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.sampling import MAX_BIASED_TOKENS, MAX_CHOICES, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from layered_llm.transport.http.endpoints import all_endpoints
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.fair_work import FairWork
from layered_llm.transport.http.exchange.incoming_body import LARGE_BODY_BYTES, parsed
from layered_llm.transport.http.openai.schema.fields import (
    MAX_JSON_TEXT_CHARS,
    MAX_LONG_INTEGERS,
    MAX_MEMBERS,
    MAX_VALUES,
    MalformedBody,
    decode_object,
    decode_text,
    encode_text,
)
from layered_llm.transport.http.openai.schema.requests import parse_chat, parse_completion
from layered_llm.transport.http.sglang.generate_body import parse_generate
from layered_llm.transport.http.vllm.tokenizer_bodies import parse_detokenize, parse_tokenize
from support.http_client import CHAT, COMPLETIONS, application, post
from support.http_engine import FakeEngine, accepting


def thread_of(body: bytes) -> tuple[int, int]:
    return threading.get_ident(), len(body)


async def test_a_small_body_is_parsed_at_once() -> None:
    here = threading.get_ident()

    assert (here, LARGE_BODY_BYTES) == await parsed(thread_of, b" " * LARGE_BODY_BYTES, FairWork(), "a")


async def test_a_large_body_is_parsed_in_a_thread() -> None:
    here = threading.get_ident()

    there, size = await parsed(thread_of, b" " * (LARGE_BODY_BYTES + 1), FairWork(), "a")

    assert there != here
    assert size == LARGE_BODY_BYTES + 1


async def test_a_parse_that_nobody_waits_for_keeps_its_place_until_it_ends() -> None:
    may_end, order = threading.Event(), list[str]()
    fair_work = FairWork()

    def forgotten(_body: bytes) -> None:
        may_end.wait(timeout=60)
        order.append("forgotten")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(parsed, forgotten, b" " * (LARGE_BODY_BYTES + 1), fair_work, "a")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parsed, lambda _body: order.append("next"), b" " * (LARGE_BODY_BYTES + 1), fair_work, "a")
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()

    assert ["forgotten", "next"] == order


async def test_a_flood_of_one_account_delays_another_by_one_turn() -> None:
    order, fair_work = list[bytes](), FairWork()
    async with trio.open_nursery() as nursery, fair_work.turn("flooder", 1):
        for _ in range(20):
            nursery.start_soon(parsed, lambda body: order.append(body[:5]), b"flood" * 4000, fair_work, "flooder")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(parsed, lambda body: order.append(body[:5]), b"other" * 1000, fair_work, "other")
        await trio.testing.wait_all_tasks_blocked()

    assert b"other" in order[:2]


async def test_a_body_whose_request_is_gone_takes_no_turn() -> None:
    order, fair_work = list[bytes](), FairWork()
    async with trio.open_nursery() as nursery, fair_work.turn("a", 1):
        async with trio.open_nursery() as leaving:
            leaving.start_soon(parsed, lambda body: order.append(body[:4]), b"gone" * 4000, fair_work, "a")
            await trio.testing.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        nursery.start_soon(parsed, lambda body: order.append(body[:4]), b"here" * 4000, fair_work, "a")
        await trio.testing.wait_all_tasks_blocked()

    assert [b"here"] == order


@pytest.mark.parametrize(("path", "field"), [(CHAT, "messages"), (COMPLETIONS, "prompt")])
async def test_a_large_body_is_judged_as_a_small_one_is(path: str, field: str) -> None:
    exchange = await post(application(FakeEngine(accepting)), path, {field: 1, "user": "x" * LARGE_BODY_BYTES})

    assert exchange.status == 400
    assert exchange.error()["param"] == field


@pytest.mark.parametrize("path", [endpoint.path for endpoint in all_endpoints() if endpoint.body is not None])
async def test_every_endpoint_parses_a_large_body_in_a_thread(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sync, in_threads = trio.to_thread.run_sync, list[object]()

    async def recording(parse: "functools.partial[object]", **options: Any) -> object:
        in_threads.extend(map(len, parse.args))
        return await run_sync(parse, **options)

    monkeypatch.setattr(trio.to_thread, "run_sync", recording)
    body = {"user": "x" * LARGE_BODY_BYTES}
    await post(application(FakeEngine(accepting)), path, body)

    assert [len(json.dumps(body))] == in_threads


@pytest.mark.parametrize(("item", "complaint"), [(b"[],", "lists and objects"), (b"1,", "values")])
async def test_a_body_of_too_many_values_is_refused_before_it_is_decoded(item: bytes, complaint: str) -> None:
    body = b'{"prompt": [' + item * (MAX_VALUES + 1) + b"1]}"

    with pytest.raises(MalformedBody, match=complaint):
        decode_object(body)


def test_a_body_of_too_many_names_is_refused_before_it_is_decoded() -> None:
    body = b'{"prompt": "x"' + b',"a":1' * (MAX_MEMBERS + 1) + b"}"

    with pytest.raises(MalformedBody, match="named members"):
        decode_object(body)


def test_few_numbers_of_a_body_may_have_hundreds_of_digits() -> None:
    def numbers(count: int) -> bytes:
        return b'{"prompt": [' + b",".join([b"9" * 4000] * count) + b"]}"

    assert [int("9" * 4000)] * MAX_LONG_INTEGERS == decode_object(numbers(MAX_LONG_INTEGERS))["prompt"]
    with pytest.raises(MalformedBody, match="digits"):
        decode_object(numbers(MAX_LONG_INTEGERS + 1))


def test_a_long_text_of_colons_or_commas_alone_is_no_names() -> None:
    for text in ("12:34:56 " * MAX_MEMBERS, "one, two, " * MAX_MEMBERS):
        assert {"prompt": text} == decode_object(json.dumps({"prompt": text}).encode())


@pytest.mark.parametrize(("item", "complaint"), [("[],", "lists and objects"), ("1,", "values")])
def test_a_string_of_too_many_values_is_refused_before_it_is_decoded(item: str, complaint: str) -> None:
    with pytest.raises(ParameterError, match=f"arguments holds .* {complaint}"):
        decode_text("arguments", "[" + item * (MAX_VALUES + 1) + "1]")


def test_an_object_that_is_too_deep_for_the_encoder_is_the_callers_fault() -> None:
    value: object = 1
    for _ in range(10_000):
        value = [value]

    with pytest.raises(ParameterError, match="documents is nested too deeply"):
        encode_text("documents", value)


@pytest.mark.parametrize(
    "members",
    [
        '"messages": [{"role": "user", "content": "x"}], "documents": [@]',
        '"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": @}}]}]',
    ],
)
def test_no_depth_is_a_fault_of_the_server(members: str) -> None:
    # Where the decoder's limit lies depends on the caller's own depth, and on the version of Python.
    objects = ['{"a":' * depth + "1" + "}" * depth for depth in (*range(850, 1000), 50_000)]

    asked = [parse_chat(f"{{{members.replace('@', value)}}}".encode()) for value in objects]

    assert not isinstance(asked[0], ApiError)
    assert {400} == {one.status for one in asked if isinstance(one, ApiError)}


def test_what_a_template_is_given_has_a_limit() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": "x" * MAX_JSON_TEXT_CHARS}}

    asked = parse_chat(json.dumps(body).encode())

    assert isinstance(asked, ApiError)
    assert (400, "chat_template_kwargs") == (asked.status, asked.param)
    assert str(MAX_JSON_TEXT_CHARS) in asked.message


@pytest.mark.parametrize(
    ("parse", "name", "item", "limit"),
    [
        (parse_completion, "prompt", "x", MAX_CHOICES),
        (parse_completion, "prompt", [1], MAX_CHOICES),
        (parse_completion, "stop", "x", MAX_STOP_STRINGS),
        (parse_completion, "stop_token_ids", 1, MAX_STOP_TOKEN_IDS),
        (parse_generate, "text", "x", MAX_CHOICES),
        (parse_generate, "input_ids", [1], MAX_CHOICES),
        (parse_generate, "rid", "x", MAX_CHOICES),
    ],
)
def test_a_list_that_is_too_long_is_refused_before_its_items_are_read(
    parse: Callable[[bytes], object], name: str, item: object, limit: int
) -> None:
    # The wrong last item would be named if the items were read.
    asked = parse(json.dumps({name: [item] * limit + [False]}).encode())

    assert isinstance(asked, ApiError)
    assert (name, f"{name} holds {limit + 1} items, at most {limit} are allowed") == (asked.param, asked.message)


def test_a_bias_for_too_many_tokens_is_refused_before_they_are_read() -> None:
    biases = {"x": 1, **{str(token): 1 for token in range(MAX_BIASED_TOKENS)}}

    asked = parse_completion(json.dumps({"prompt": "x", "logit_bias": biases}).encode())

    assert isinstance(asked, ApiError)
    assert f"logit_bias holds {MAX_BIASED_TOKENS + 1} items, at most {MAX_BIASED_TOKENS} are allowed" == asked.message


async def test_no_model_name_is_so_long_that_it_would_weigh_on_every_chunk() -> None:
    exchange = await post(application(FakeEngine(accepting)), COMPLETIONS, {"prompt": "x", "model": "m" * 1025})

    assert (400, "model") == (exchange.status, exchange.error()["param"])
    assert "model must have 0 to 1024 characters, got 1025" == exchange.error()["message"]


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_chat, {"messages": [{"role": "user", "content": "x"}]}),
        (parse_completion, {"prompt": "x"}),
        (parse_generate, {"text": "x"}),
        (parse_tokenize, {"prompt": "x"}),
        (parse_detokenize, {"tokens": [1]}),
    ],
)
def test_fields_without_effect_are_named_in_the_debug_log_alone(
    parse: Callable[[bytes], object], body: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        parse(json.dumps(body).encode())
        parse(json.dumps({**body, "surprise": "secret"}).encode())

    assert [("DEBUG", "fields without effect: ['surprise']")] == [(one.levelname, one.getMessage()) for one in caplog.records]
