import asyncio
import ssl
from collections.abc import Callable
from contextlib import aclosing

import attrs
import httpx
import pytest
import trio

from layered_llm.client.chat import AsyncChatClient, ChatClient
from layered_llm.client.errors import (
    ApiError,
    ApiStatusError,
    ClientError,
    ConnectFailed,
    FirstTokenTimeout,
    IdleTimeout,
    MalformedStream,
    StreamError,
    StreamTruncated,
)
from layered_llm.client.http import aiter_sse, iter_sse
from layered_llm.client.stream_core import StreamTimeouts
from support.client_fakes import DONE, Body, Piece, chat_chunk, event, stream_response, usage_chunk

URL = "http://server"
MESSAGES = [{"role": "user", "content": "Hi"}]
Respond = Callable[[httpx.Request], httpx.Response]


@attrs.frozen
class Seen:
    texts: list[str]
    error: ClientError | None


def with_blocking(respond: Respond) -> Seen:
    texts: list[str] = []
    try:
        with (
            ChatClient(URL, http=httpx.Client(transport=httpx.MockTransport(respond))) as client,
            client.chat_stream(model="m", messages=MESSAGES) as stream,
        ):
            texts.extend(chunk.text for chunk in stream)
    except ClientError as error:
        return Seen(texts, error)
    return Seen(texts, None)


async def read_async(respond: Respond, timeouts: StreamTimeouts | None = None) -> Seen:
    texts: list[str] = []
    http = httpx.AsyncClient(transport=httpx.MockTransport(respond))
    try:
        async with (
            AsyncChatClient(URL, http=http, timeouts=timeouts or StreamTimeouts()) as client,
            client.chat_stream(model="m", messages=MESSAGES) as stream,
        ):
            async for chunk in stream:
                texts.append(chunk.text)  # noqa: PERF401 - what came before an error counts
    except ClientError as error:
        return Seen(texts, error)
    return Seen(texts, None)


def with_asyncio(respond: Respond) -> Seen:
    return asyncio.run(read_async(respond))


def with_trio(respond: Respond) -> Seen:
    return trio.run(read_async, respond)


every_shell = pytest.mark.parametrize("read", [with_blocking, with_asyncio, with_trio])
Read = Callable[[Respond], Seen]


def answer(*pieces: Piece) -> Respond:
    return lambda _request: stream_response(*pieces)


@every_shell
def test_chunks_of_a_whole_answer(read: Read) -> None:
    body = event(chat_chunk("a")) + event(chat_chunk("é")) + event(usage_chunk(1, 2)) + DONE

    assert Seen(["a", "é", ""], None) == read(answer(*(body[i : i + 1] for i in range(len(body)))))


@every_shell
def test_stream_without_done_is_truncated(read: Read) -> None:
    seen = read(answer(event(chat_chunk("a"))))

    assert ["a"] == seen.texts
    assert isinstance(seen.error, StreamTruncated)


@every_shell
def test_broken_connection_is_truncated(read: Read) -> None:
    seen = read(answer(event(chat_chunk("a")), httpx.ReadError("reset")))

    assert ["a"] == seen.texts
    assert isinstance(seen.error, StreamTruncated)


@every_shell
def test_error_in_the_stream(read: Read) -> None:
    seen = read(answer(event(chat_chunk("a")), event({"error": {"message": "out of memory", "code": 500}}), DONE))

    assert ["a"] == seen.texts
    assert isinstance(seen.error, StreamError)
    assert ApiError(message="out of memory", code="500") == seen.error.error


@every_shell
def test_status_error_carries_what_the_server_said(read: Read) -> None:
    body = {"error": {"message": "queue full", "type": "rate_limit_error", "code": "queue_full"}}
    headers = {"retry-after": "2", "x-request-id": "r1"}
    error = read(lambda _request: httpx.Response(429, json=body, headers=headers)).error

    assert isinstance(error, ApiStatusError)
    assert ApiError(message="queue full", type="rate_limit_error", code="queue_full") == error.error
    assert (429, 2.0, "r1") == (error.status, error.retry_after_s, error.request_id)
    assert "HTTP 429: queue full" == str(error)


@every_shell
def test_redirection_is_a_status_and_no_stream(read: Read) -> None:
    seen = read(lambda _request: httpx.Response(307, headers={"location": "https://h/"}))

    assert isinstance(seen.error, ApiStatusError)
    assert 307 == seen.error.status


@every_shell
def test_answer_that_is_no_stream(read: Read) -> None:
    seen = read(lambda _request: httpx.Response(200, json={"choices": []}))

    assert isinstance(seen.error, MalformedStream)
    assert "application/json" in str(seen.error)


def refuse(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def distrust(_request: httpx.Request) -> httpx.Response:
    error, between, cause = httpx.ConnectError(""), OSError(), ssl.SSLCertVerificationError("self-signed certificate")
    error.__cause__, between.__context__ = between, cause
    raise error


def say_nothing(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("")


def never_connect(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectTimeout("no route")


def hang(_request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("silent")


@every_shell
@pytest.mark.parametrize("respond", [refuse, never_connect])
def test_no_connection(read: Read, respond: Respond) -> None:
    assert isinstance(read(respond).error, ConnectFailed)


@every_shell
@pytest.mark.parametrize(("respond", "said"), [(distrust, "self-signed certificate"), (say_nothing, "ConnectError")])
def test_an_error_without_a_word_has_that_of_its_cause(read: Read, respond: Respond, said: str) -> None:
    error = read(respond).error
    assert isinstance(error, ConnectFailed)
    assert said in str(error)


@every_shell
def test_socket_timeout_before_the_answer(read: Read) -> None:
    assert isinstance(read(hang).error, FirstTokenTimeout)


@every_shell
def test_socket_timeout_in_the_answer(read: Read) -> None:
    assert isinstance(read(answer(event(chat_chunk("a")), httpx.ReadTimeout("silent"))).error, IdleTimeout)


@pytest.mark.parametrize(
    ("value", "expected"), [({"retry-after-ms": "1500"}, 1.5), ({"retry-after": "0.5"}, 0.5), ({"retry-after": "Mon, 1"}, None)]
)
def test_retry_after_forms(value: dict[str, str], expected: float | None) -> None:
    error = with_blocking(lambda _request: httpx.Response(503, headers=value)).error

    assert isinstance(error, ApiStatusError)
    assert expected == error.retry_after_s


async def test_silence_before_the_first_token(autojump_clock: trio.testing.MockClock) -> None:
    timeouts = StreamTimeouts(first_token_s=10.0, idle_s=1.0)
    seen = await read_async(answer(3600.0, event(chat_chunk("a")), DONE), timeouts)

    assert isinstance(seen.error, FirstTokenTimeout)
    assert 10.0 == pytest.approx(trio.current_time())


async def test_keep_alives_do_not_hide_silence(autojump_clock: trio.testing.MockClock) -> None:
    timeouts = StreamTimeouts(first_token_s=100.0, idle_s=10.0)
    pings: list[Piece] = [4.0, b": ping\n\n"] * 10
    seen = await read_async(answer(event(chat_chunk("a")), *pings), timeouts)

    assert ["a"] == seen.texts
    assert isinstance(seen.error, IdleTimeout)
    assert 10.0 == pytest.approx(trio.current_time())


async def test_long_stream_has_no_total_limit(autojump_clock: trio.testing.MockClock) -> None:
    timeouts = StreamTimeouts(first_token_s=10.0, idle_s=10.0)
    pieces: list[Piece] = [9.0, event(chat_chunk("a"))] * 100
    seen = await read_async(answer(*pieces, DONE), timeouts)

    assert Seen(["a"] * 100, None) == seen


async def test_slow_consumer_is_not_taken_for_silence(autojump_clock: trio.testing.MockClock) -> None:
    http = httpx.AsyncClient(transport=httpx.MockTransport(answer(*[event(chat_chunk("a"))] * 5, DONE)))
    texts = []
    async with (
        AsyncChatClient(URL, http=http, timeouts=StreamTimeouts(first_token_s=1.0, idle_s=1.0)) as client,
        client.chat_stream(model="m", messages=MESSAGES) as stream,
    ):
        async for chunk in stream:
            texts.append(chunk.text)
            await trio.sleep(60.0)

    assert ["a"] * 5 == texts


async def test_server_that_keeps_the_body_open_after_done_holds_nobody(autojump_clock: trio.testing.MockClock) -> None:
    assert Seen(["a"], None) == await read_async(answer(event(chat_chunk("a")), DONE, 3600.0))
    assert trio.current_time() < 1.0


async def test_leaving_early_closes_the_response() -> None:
    body = Body([event(chat_chunk("a")), 3600.0])
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=body)
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _request: response))
    async with AsyncChatClient(URL, http=http) as client, client.chat_stream(model="m", messages=MESSAGES) as stream:
        await anext(stream)
        assert 0 == body.closed

    assert 1 == body.closed


def test_leaving_early_closes_the_blocking_response() -> None:
    body = Body([event(chat_chunk("a")), event(chat_chunk("b"))])
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=body)
    http = httpx.Client(transport=httpx.MockTransport(lambda _request: response))
    with ChatClient(URL, http=http) as client, client.chat_stream(model="m", messages=MESSAGES) as stream:
        next(stream)

    assert 1 == body.closed


def test_events_of_any_response() -> None:
    response = stream_response(b"data: a\n\nda", b"ta: b")

    assert ["a", "b"] == [item.data for item in iter_sse(response)]


async def test_events_of_any_asynchronous_response() -> None:
    async with aclosing(aiter_sse(stream_response(b"data: a\n\nda", b"ta: b"))) as events:
        assert ["a", "b"] == [item.data async for item in events]
