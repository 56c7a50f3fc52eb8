import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.raw_client import raw_client
from support.server import Server, python_server, scripted

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hello"}
HUGE = 10**400
CONTEXT_TOKENS = 256


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=CONTEXT_TOKENS)
    with python_server(scripted(model)) as server:
        yield server


def check_still_right(server: Server) -> None:
    response = server.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 5})
    assert (200, "abcab") == (response.status_code, response.json()["choices"][0]["text"])


def post_bytes(server: Server, path: str, body: bytes) -> httpx.Response:
    with server.client() as client:
        return client.post(path, content=body, headers={"content-type": "application/json"})


def error_of(response: httpx.Response) -> Any:
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert error["message"]
    return error


MALFORMED = {
    "empty": b"",
    "no-json": b"hello",
    "cut": b'{"messages": [{"role": "us',
    "nan": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "temperature": Infinity}',
    "overflow": b'{"prompt": "a", "temperature": 1e999}',
    "invalid-utf8": b'{"prompt": "\xff\xfe"}',
    "utf16": '{"prompt": "a"}'.encode("utf-16"),
    "deep-lists": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep-objects": b'{"prompt": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "digits": b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
    "list": b"[]",
    "string": b'"prompt"',
    "null": b"null",
    "trailing": b'{"prompt": "a"} {}',
    "nul-byte": b'{"prompt": "a\x00"}',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_body_that_is_no_json_object_is_a_bad_request(path: str, body: bytes, server: Server) -> None:
    response = post_bytes(server, path, body)

    assert 400 == response.status_code
    error_of(response)
    check_still_right(server)


BAD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": 1.5}),
    ("max_tokens", {"max_tokens": "5"}),
    ("max_tokens", {"max_tokens": True}),
    ("max_tokens", {"max_tokens": HUGE}),
    ("max_tokens", {"max_tokens": [5]}),
    ("max_completion_tokens", {"max_completion_tokens": -5}),
    ("min_tokens", {"min_tokens": 9, "max_tokens": 5}),
    ("n", {"n": 0}),
    ("n", {"n": -1}),
    ("n", {"n": 1_000_000_000}),
    ("n", {"n": "2"}),
    ("n", {"n": 1.0}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 1e6}),
    ("temperature", {"temperature": HUGE}),
    ("temperature", {"temperature": "hot"}),
    ("temperature", {"temperature": False}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": -1}),
    ("top_p", {"top_p": 1.1}),
    ("top_k", {"top_k": -2}),
    ("top_k", {"top_k": 0.5}),
    ("seed", {"seed": HUGE}),
    ("seed", {"seed": "x"}),
    ("stop", {"stop": 5}),
    ("stop", {"stop": ""}),
    ("stop[1]", {"stop": ["a", None]}),
    ("stop", {"stop": ["a"] * 1000}),
    ("stop", {"stop": "\ud800"}),
    ("stop_token_ids", {"stop_token_ids": 5}),
    ("stop_token_ids", {"stop_token_ids": [-1]}),
    ("stop_token_ids", {"stop_token_ids": [100_000]}),
    ("stream", {"stream": "yes"}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("stream_options", {"stream": True, "stream_options": 1}),
    ("include_usage", {"stream": True, "stream_options": {"include_usage": 1}}),
    ("model", {"model": 5}),
    ("logit_bias", {"logit_bias": "5"}),
    ("logit_bias", {"logit_bias": {"5": 101}}),
    ("bad_words", {"bad_words": [""]}),
    ("allowed_token_ids", {"allowed_token_ids": [100_000]}),
    ("samplers", {"samplers": ["top_k"]}),
    ("num_beams", {"num_beams": 4}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("presence_penalty", {"presence_penalty": 5}),
    ("frequency_penalty", {"frequency_penalty": "a"}),
    ("modalities", {"modalities": ["audio"]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("best_of", {"best_of": 5}),
]


@pytest.mark.parametrize(("param", "fields"), BAD_FIELDS, ids=lambda value: value if isinstance(value, str) else None)
@pytest.mark.parametrize("stream", [False, True])
def test_a_field_that_cannot_be_honoured_is_named(param: str, fields: dict[str, Any], stream: bool, server: Server) -> None:
    streamed = {"stream": True} if stream and "stream_options" not in fields else {}
    for path, prompt in ((CHAT, {"messages": [USER]}), (COMPLETIONS, {"prompt": "ab"})):
        response = post_bytes(server, path, json.dumps({**prompt, **streamed, **fields}).encode())

        assert param == error_of(response)["param"]
        assert response.headers["content-type"].startswith("application/json")


BAD_MESSAGES: list[tuple[str, Any]] = [
    ("messages", None),
    ("messages", []),
    ("messages", "hello"),
    ("messages", {}),
    ("messages[0]", ["hello"]),
    ("messages[0]", [None]),
    ("messages[0].role", [{}]),
    ("messages[0].role", [{"role": "wizard", "content": "a"}]),
    ("messages[0].role", [{"role": ["user"], "content": "a"}]),
    ("messages[0].role", [{"role": {}, "content": "a"}]),
    ("messages[0].content", [{"role": "user"}]),
    ("messages[0].content", [{"role": "user", "content": None}]),
    ("messages[0].content", [{"role": "user", "content": 5}]),
    ("messages[0].content", [{"role": "user", "content": "\ud800"}]),
    ("messages[0].content[0]", [{"role": "user", "content": ["a"]}]),
    ("messages[0].content[0].type", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages[0].content[0].text", [{"role": "user", "content": [{"type": "text"}]}]),
    ("messages[0].name", [{"role": "user", "content": "a", "name": 5}]),
    ("messages[1].role", [USER, {"role": "User", "content": "a"}]),
]


@pytest.mark.parametrize(("param", "messages"), BAD_MESSAGES)
def test_a_message_that_is_none_is_named(param: str, messages: Any, server: Server) -> None:
    response = post_bytes(server, CHAT, json.dumps({"messages": messages}).encode())

    assert param == error_of(response)["param"]
    check_still_right(server)


BAD_PROMPTS: list[tuple[str, Any]] = [
    ("prompt", None),
    ("prompt", ""),
    ("prompt", []),
    ("prompt", {}),
    ("prompt", 5),
    ("prompt", True),
    ("prompt", "\ud800"),
    ("prompt", "x\udfffy"),
    ("prompt", [""]),
    ("prompt[0]", [[]]),
    ("prompt[1]", ["a", 5]),
    ("prompt[1]", ["a", "\ud800"]),
    ("prompt", [5, "a"]),
    ("prompt", [-1]),
    ("prompt", [1.5]),
    ("prompt", [None]),
    ("prompt", [True]),
    ("prompt", [HUGE]),
    ("prompt", [259]),
    ("prompt[0]", [[1, "a"]]),
    ("prompt", ["a"] * 1000),
    ("prompt", "x" * (CONTEXT_TOKENS + 1)),
    ("prompt", [97] * (CONTEXT_TOKENS + 1)),
]


@pytest.mark.parametrize(("param", "prompt"), BAD_PROMPTS, ids=lambda value: repr(value)[:24])
def test_a_prompt_that_cannot_be_continued_is_refused(param: str, prompt: Any, server: Server) -> None:
    response = post_bytes(server, COMPLETIONS, json.dumps({"prompt": prompt}).encode())

    assert param == error_of(response)["param"]
    check_still_right(server)


def test_one_bad_prompt_of_several_leaves_nothing_of_the_others(server: Server) -> None:
    response = server.post(COMPLETIONS, {"prompt": ["fine", "x" * 1000, "fine"], "max_tokens": 100})

    assert "context_length_exceeded" == error_of(response)["code"]
    server.wait_quiescent()


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": ""}],
        [{"role": "system", "content": "only"}],
        [USER, USER],
        [{"role": "tool", "content": "x", "tool_call_id": "1"}],
        [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    ],
)
def test_conversations_of_unusual_shape_are_answered(messages: Any, server: Server) -> None:
    assert 200 == server.post(CHAT, {"messages": messages, "max_tokens": 3}).status_code


def test_text_outside_of_the_basic_plane_arrives_whole(server: Server) -> None:
    text = "a😀é\u0000\U0010ffff"
    response = server.post(COMPLETIONS, {"prompt": text, "max_tokens": len(text.encode())})

    assert text == response.json()["choices"][0]["text"]


def test_a_body_of_20_megabytes_is_too_large(server: Server) -> None:
    body = json.dumps({"prompt": "x" * 20_000_000}).encode()
    try:
        response = post_bytes(server, COMPLETIONS, body)
    except httpx.WriteError:  # the server may close the connection before it took all of the body
        pass
    else:
        assert 413 == response.status_code
        error_of(response)
    check_still_right(server)


def test_a_prompt_of_10_megabytes_is_refused_and_stalls_nobody(server: Server) -> None:
    response = server.post(COMPLETIONS, {"prompt": "x" * 10_000_000})

    assert "context_length_exceeded" == error_of(response)["code"]
    check_still_right(server)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/nobody", 404),
        ("GET", "/v1/models/%00%ff", 404),
        ("GET", "/v1/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/health", 405),
        ("POST", "/v1/embeddings", 404),
    ],
)
def test_what_does_not_exist_is_told_in_json(method: str, path: str, status: int, server: Server) -> None:
    with server.client() as client:
        response = client.request(method, path)

    assert status == response.status_code
    error_of(response)


GARBAGE = {
    "no-http": b"hello\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    "zeros": b"\x00" * 4096,
    "long-header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "bad-length": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: banana\r\n\r\n",
    "negative-length": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    "bad-chunk": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "two-lengths": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "no-host": b"GET /health HTTP/1.1\r\n\r\n",
    "h2-preface-cut": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00",
    "h2-garbage": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 512,
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_on_the_socket_ends_its_connection_alone(data: bytes, server: Server) -> None:
    with raw_client(server.port) as client:
        client.sock.sendall(data)
        client.sock.shutdown(socket.SHUT_WR)
        received = client.read_to_end()

    assert b" 200 " not in received.partition(b"\r\n")[0]
    check_still_right(server)
    assert "Traceback" not in server.log


def test_a_body_that_stops_half_way_is_let_go_with_its_connection(server: Server) -> None:
    with raw_client(server.port) as client:
        client.sock.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{"prompt": ')
        client.leave("RST")
    server.wait_quiescent()
    check_still_right(server)

    assert "Traceback" not in server.log
