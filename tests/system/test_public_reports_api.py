"""Faults of streams and of bodies that other servers were reported for, each named after its kind."""

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from support.byte_checkpoint import EOS, TURN, write_byte_checkpoint
from support.server import SERVED_NAME, Server, python_server, scripted

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATHS = [CHAT, COMPLETIONS]
CONTEXT_TOKENS = 256
SCRIPTS = "👨‍👩‍👧‍👦 🏳️‍🌈🇩🇪 한국어 각 हिन्दी क्षि naïve"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Says its prompt again and again, a byte in each token, and of a conversation the last turn."""
    template = "{{ messages[-1].content }}"
    model = write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=CONTEXT_TOKENS, chat_template=template)
    with python_server(scripted(model)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def asking(path: str, prompt: str, **fields: object) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return {**asked, **fields}


def whole(client: httpx.Client, path: str, prompt: str, **fields: object) -> Any:
    response = client.post(path, json=asking(path, prompt, **fields))
    assert 200 == response.status_code, response.text
    return response.json()


def streamed(client: httpx.Client, path: str, prompt: str, **fields: object) -> list[Any]:
    """The chunks, of which there is nothing behind [DONE]."""
    response = client.post(path, json=asking(path, prompt, stream=True, **fields))
    assert (200, "text/event-stream; charset=utf-8") == (response.status_code, response.headers["content-type"])
    *items, done, nothing = response.text.split("\n\n")
    assert ("data: [DONE]", "") == (done, nothing)
    assert all(item.startswith("data: ") and "\n" not in item for item in items)
    return [json.loads(item.removeprefix("data: ")) for item in items]


def said(choice: Any) -> str:
    """The text of a choice, whole or a piece."""
    if "text" in choice:
        return str(choice["text"])
    return (choice.get("message") or choice["delta"]).get("content") or ""


def pieces(chunks: list[Any], index: int = 0) -> list[str]:
    return [said(choice) for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def refused(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    response = client.post(path, content=json.dumps(body).encode(), headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500, response.text
    assert "application/json" == response.headers["content-type"]
    return {"status": response.status_code, **response.json()["error"]}


def check_others_are_served(client: httpx.Client) -> None:
    assert "abcab" == said(whole(client, COMPLETIONS, "abc", max_tokens=5)["choices"][0])


@pytest.mark.parametrize("path", PATHS)
def test_b1_no_character_is_shown_before_it_is_whole(path: str, client: httpx.Client) -> None:
    tokens = len(SCRIPTS.encode())
    shown = itertools.accumulate(pieces(streamed(client, path, SCRIPTS, max_tokens=tokens)))
    assert all(SCRIPTS.startswith(text) for text in shown)
    cut = streamed(client, path, SCRIPTS, max_tokens=tokens - 1)
    assert SCRIPTS == "".join(pieces(streamed(client, path, SCRIPTS, max_tokens=tokens)))
    assert SCRIPTS.startswith("".join(pieces(cut)).removesuffix("\ufffd"))


STOPS: list[tuple[str, list[str], int, str, str | None]] = [
    ("brown fox ", ["own fox"], 40, "br", "own fox"),
    ("brown fox ", ["own fox", "own foxes", "ow"], 40, "br", "ow"),
    ("aaab", ["aab"], 40, "a", "aab"),
    ("abcabd", ["abd", "abca!"], 40, "abc", "abd"),
    ("brown fox ", ["fox jumps"], 9, "brown fox", None),
    ("né 🙂 ", ["🙂"], 40, "né ", "🙂"),
    ("x\ny", ["\n"], 40, "x", "\n"),
]
"""What is said again and again, what it stops at, after how many tokens at the latest, what is left, and what matched."""


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", STOPS, ids=[stops[1][0] for stops in STOPS])
def test_b4_no_part_of_a_stop_string_is_ever_shown(
    case: tuple[str, list[str], int, str, str | None], path: str, client: httpx.Client
) -> None:
    prompt, stop, max_tokens, text, matched = case
    (choice,) = whole(client, path, prompt, max_tokens=max_tokens, stop=stop)["choices"]
    chunks = streamed(client, path, prompt, max_tokens=max_tokens, stop=stop)
    last = chunks[-1]["choices"][0]

    assert (text, matched) == (said(choice), choice["stop_reason"])
    assert text == "".join(pieces(chunks))
    assert all(text.startswith(shown) for shown in itertools.accumulate(pieces(chunks)))
    assert (choice["finish_reason"], matched) == (last["finish_reason"], last["stop_reason"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_b6_every_chunk_has_the_key_and_each_choice_one_reason(n: int, path: str, client: httpx.Client) -> None:
    chunks = streamed(client, path, "abc", n=n, max_tokens=4)
    reasons: list[list[str | None]] = [[] for _ in range(n)]
    for chunk in chunks:
        if path == CHAT:
            ChatCompletionChunk.model_validate(chunk)
        for choice in chunk["choices"]:
            reasons[choice["index"]].append(choice["finish_reason"])
    assert [["length"]] * n == [[reason for reason in told if reason] for told in reasons]
    assert all(told[-1] == "length" for told in reasons)


@pytest.mark.parametrize("path", PATHS)
def test_b7_the_last_text_comes_before_the_reason(path: str, client: httpx.Client) -> None:
    last = [chunk["choices"][0] for chunk in streamed(client, path, "abc", max_tokens=4)][-2:]
    assert [None, "length"] == [choice["finish_reason"] for choice in last]
    assert said(last[0])
    assert "" == said(last[1])


@pytest.mark.parametrize("path", PATHS)
def test_b8_an_output_that_was_cut_says_so(path: str, client: httpx.Client) -> None:
    reasons = [whole(client, path, f"ab{EOS}", max_tokens=limit)["choices"][0]["finish_reason"] for limit in (2, 3)]
    assert ["length", "stop"] == reasons


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("options", "is_told"), [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)]
)
def test_b10_b11_usage_is_one_last_chunk_without_choices_and_only_on_demand(
    options: dict[str, Any] | None, is_told: bool, path: str, client: httpx.Client
) -> None:
    *chunks, last = streamed(client, path, "abc", max_tokens=4, stream_options=options)
    assert [None] * len(chunks) == [chunk.get("usage") for chunk in chunks]
    assert all(chunk["choices"] for chunk in chunks)
    assert is_told == (last["choices"] == [])
    assert is_told == (last.get("usage") is not None)


USAGES = [("abc", {"max_tokens": tokens}, tokens) for tokens in (1, 8, 16)] + [
    (f"ab{EOS}", {"max_tokens": 16}, 3),
    ("abcdef", {"max_tokens": 16, "stop": ["de"]}, 5),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("prompt", "fields", "tokens"), USAGES)
def test_b12_usage_counts_the_sampled_tokens(
    prompt: str, fields: dict[str, Any], tokens: int, path: str, client: httpx.Client
) -> None:
    told = whole(client, path, prompt, **fields)["usage"]
    last = streamed(client, path, prompt, **fields, stream_options={"include_usage": True})[-1]["usage"]
    assert tokens == told["completion_tokens"]
    assert {**told, "prompt_tokens_details": None} == {**last, "prompt_tokens_details": None}


WRONG: list[dict[str, Any]] = [
    {"max_tokens": -1},
    {"n": 0},
    {"temperature": -1},
    {"model": "nobody"},
    {"stop": [""]},
    {"logit_bias": {"999999": 1}},
    {"response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", [*WRONG, {"prompt": "x" * 300}], ids=lambda fields: next(iter(fields)))
def test_b15_a_wrong_request_has_the_same_error_streamed_and_whole(
    fields: dict[str, Any], path: str, client: httpx.Client
) -> None:
    asked = asking(path, fields.get("prompt", "x"), **{name: value for name, value in fields.items() if name != "prompt"})
    assert refused(client, path, asked) == refused(client, path, {**asked, "stream": True})


@pytest.mark.parametrize("path", PATHS)
def test_b16_special_tokens_are_shown_on_demand_alone_and_in_both_modes_alike(path: str, client: httpx.Client) -> None:
    prompt = f"a{TURN}b"
    for fields, text in (({}, "ab"), ({"skip_special_tokens": False}, prompt)):
        assert text == said(whole(client, path, prompt, max_tokens=3, **fields)["choices"][0])
        assert text == "".join(pieces(streamed(client, path, prompt, max_tokens=3, **fields)))


@pytest.mark.parametrize("path", PATHS)
def test_b20_running_usage_is_taken_and_unknown_options_harm_nothing(path: str, client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "unheard_of": [1]}
    counts = [
        chunk["usage"]["completion_tokens"] for chunk in streamed(client, path, "abc", max_tokens=4, stream_options=options)
    ]
    assert sorted(counts) == counts
    assert 4 == counts[-1]


@pytest.mark.parametrize("path", PATHS)
def test_b22_a_line_break_in_the_text_breaks_no_event(path: str, client: httpx.Client) -> None:
    text = 'a\n\nb\r\ndata: x\n\n"\u2028'
    chunks = streamed(client, path, text, max_tokens=len(text.encode()))
    assert text == "".join(pieces(chunks))
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    assert {(kind, SERVED_NAME)} == {(chunk["object"], chunk["model"]) for chunk in chunks}
    assert {int} == {type(chunk["created"]) for chunk in chunks}


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""]])
def test_c1_an_empty_prompt_is_refused_and_nobody_else_is(prompt: object, client: httpx.Client) -> None:
    assert 400 == refused(client, COMPLETIONS, {"prompt": prompt})["status"]
    check_others_are_served(client)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 1e6), ("top_p", -1), ("repetition_penalty", 0), ("top_k", 10**30), ("min_p", 7)]
)
def test_c3_an_extreme_value_is_refused_by_its_name(name: str, value: object, path: str, client: httpx.Client) -> None:
    assert (400, name) == tuple(refused(client, path, asking(path, "x", **{name: value}))[key] for key in ("status", "param"))
    check_others_are_served(client)


def test_c5_without_a_limit_a_chat_has_the_rest_of_the_context_and_a_completion_16(client: httpx.Client) -> None:
    usages = [whole(client, path, "abc")["usage"]["completion_tokens"] for path in PATHS]
    assert [CONTEXT_TOKENS - 3, 16] == usages


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "fields",
    [
        {"max_completion_tokens": 10_000},
        {"max_tokens": 10_000},
        {"max_tokens": 5, "max_completion_tokens": CONTEXT_TOKENS},
        {"max_completion_tokens": CONTEXT_TOKENS - 3},
    ],
)
def test_c6_a_limit_beyond_the_context_is_an_upper_bound(fields: dict[str, int], path: str, client: httpx.Client) -> None:
    body = whole(client, path, "abc", **fields)
    assert (CONTEXT_TOKENS - 3, "length") == (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"])


@pytest.mark.parametrize("path", PATHS)
def test_c7_the_numbers_of_the_context_are_true(path: str, client: httpx.Client) -> None:
    longest = whole(client, path, "x" * (CONTEXT_TOKENS - 1), max_tokens=100)
    assert 1 == longest["usage"]["completion_tokens"]
    for length in (CONTEXT_TOKENS, CONTEXT_TOKENS + 1):
        error = refused(client, path, asking(path, "x" * length))
        assert "context_length_exceeded" == error["code"]
        assert f"context length is {CONTEXT_TOKENS} tokens" in error["message"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("options", [{}, {"include_usage": True}])
def test_c10_options_of_a_stream_without_one_are_refused(options: dict[str, Any], path: str, client: httpx.Client) -> None:
    assert "stream_options" == refused(client, path, asking(path, "x", stream_options=options))["param"]


@pytest.mark.parametrize("path", PATHS)
def test_c12_an_unknown_model_is_not_found(path: str, client: httpx.Client) -> None:
    error = refused(client, path, asking(path, "x", model="gpt-4"))
    assert (404, "model_not_found", "model") == (error["status"], error["code"], error["param"])


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}
RESULT = {"role": "tool", "content": "x", "tool_call_id": "call_1"}


@pytest.mark.parametrize(
    "messages",
    [
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "x", "tool_call_id": "c"},
        ],
        [USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT],
        [USER, {"role": "assistant", "content": ""}, USER],
        [{"role": "developer", "content": "d"}, USER],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"}],
    ],
)
def test_c13_histories_as_clients_send_them_are_taken(messages: Any, client: httpx.Client) -> None:
    response = client.post(CHAT, json={"messages": messages, "max_tokens": 2})
    assert 200 == response.status_code, response.text


def test_c14_no_sequence_of_roles_is_our_own_fault(client: httpx.Client) -> None:
    chance = random.Random(3)
    roles = ["system", "developer", "user", "assistant", "tool"]
    for _ in range(40):
        messages = [
            {"role": chance.choice(roles), "content": chance.choice(["x", "", "y"])} for _ in range(chance.randrange(5))
        ]
        assert client.post(CHAT, json={"messages": messages, "max_tokens": 1}).status_code in (200, 400), messages


def test_c15_log_probabilities_of_a_chat_are_those_of_a_chat(client: httpx.Client) -> None:
    completion = ChatCompletion.model_validate(whole(client, CHAT, "abc", max_tokens=3, logprobs=True, top_logprobs=2))
    told = completion.choices[0].logprobs
    assert told is not None
    assert ["a", "b", "c"] == [entry.token for entry in told.content or ()]
    assert [2, 2, 2] == [len(entry.top_logprobs) for entry in told.content or ()]
    for fields in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}):
        assert "top_logprobs" == refused(client, CHAT, asking(CHAT, "x", **fields))["param"]


@pytest.mark.parametrize(("max_tokens", "text"), [(0, "abc"), (1, "abca")])
def test_c16_an_echo_has_a_score_for_each_token_but_the_first(max_tokens: int, text: str, client: httpx.Client) -> None:
    for _cold_then_warm in range(2):
        body = whole(client, COMPLETIONS, "abc", max_tokens=max_tokens, echo=True, logprobs=1)
        told = body["choices"][0]["logprobs"]
        assert (text, list(text)) == (body["choices"][0]["text"], told["tokens"])
        assert [None, -0.25, -0.375] == told["token_logprobs"][:3]
        assert [None, {"b": -0.25}, {"c": -0.375}] == told["top_logprobs"][:3]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [0, -1, 10**9, "2", 1.0])
@pytest.mark.parametrize("stream", [False, True])
def test_c20_a_number_of_choices_that_is_none_is_refused(n: object, stream: bool, path: str, client: httpx.Client) -> None:
    assert "n" == refused(client, path, asking(path, "x", n=n, stream=stream))["param"]


def test_c22_what_is_not_supported_is_refused_and_what_is_asked_for_is_done(client: httpx.Client) -> None:
    assert "messages" == refused(client, CHAT, {"messages": []})["param"]
    for name, value in {"suffix": "x", "best_of": 2, "tools": [CALL], "guided_regex": "a", "use_beam_search": True}.items():
        assert name == refused(client, COMPLETIONS, asking(COMPLETIONS, "x", **{name: value}))["param"]
    body = whole(client, CHAT, "abc", n=2, stop=["b"], stream=False)
    assert ["a", "a"] == [said(choice) for choice in body["choices"]]
