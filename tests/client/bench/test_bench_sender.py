from collections.abc import Callable

import httpx
import pytest
import trio
import trio.testing

from layered_llm.client.bench.load import PlannedRequest
from layered_llm.client.bench.prompts import ChatPrompt, Prompt, TextPrompt
from layered_llm.client.bench.records import Failure, Tally
from layered_llm.client.bench.sender import Endpoint, StreamSender, failure_of
from layered_llm.client.chat import AsyncChatClient
from layered_llm.client.errors import (
    ApiError,
    ApiStatusError,
    ClientError,
    ConnectFailed,
    EventTooLarge,
    FirstTokenTimeout,
    IdleTimeout,
    MalformedStream,
    StreamError,
    StreamTruncated,
)
from support.client_bench import make_record, make_usage
from support.client_fakes import DONE, Piece, chat_chunk, event, stream_response, usage_chunk

Respond = Callable[[httpx.Request], httpx.Response]


def sender_to(respond: Respond, endpoint: Endpoint = Endpoint.CHAT) -> StreamSender:
    http = httpx.AsyncClient(transport=httpx.MockTransport(respond))
    client = AsyncChatClient("http://h", http=http)
    return StreamSender(client=client, endpoint=endpoint, model="m", parameters={"max_tokens": 5})


def planned(prompt: Prompt, *, due_s: float = 0.0) -> PlannedRequest:
    return PlannedRequest(index=3, due_s=due_s, prompt=prompt)


async def test_times_of_chunks_with_output_and_counts_of_the_server(autojump_clock: trio.testing.MockClock) -> None:
    pieces: list[Piece] = [
        1.0,
        event(chat_chunk("", role="assistant")),
        1.0,
        event(chat_chunk("several tokens")),
        0.5,
        event(chat_chunk("more")),
        event(chat_chunk(finish="stop")),
        0.25,
        event(usage_chunk(9, 7)),
        DONE,
    ]
    tally = Tally()
    record = await sender_to(lambda _request: stream_response(*pieces)).send(planned(TextPrompt("x"), due_s=-1.0), tally)

    expected = make_record(
        index=3,
        due_s=-1.0,
        sent_s=0.0,
        chunks_s=(2.0, 2.5),
        ended_s=2.75,
        usage=make_usage(prompt=9, completion=7),
    )
    assert expected == record
    assert 2 == tally.progress().chunks


async def test_failure_is_a_record_with_what_came_before_it() -> None:
    pieces = [event(chat_chunk("a")), event({"error": {"message": "boom"}})]
    record = await sender_to(lambda _request: stream_response(*pieces)).send(planned(TextPrompt("x")), Tally())

    assert Failure(kind="error in the stream", message="boom") == record.failure
    assert 1 == len(record.chunk_times_s)


@pytest.mark.parametrize(
    ("endpoint", "prompt", "path", "field"),
    [
        (Endpoint.CHAT, TextPrompt("x"), "/v1/chat/completions", b'"messages":[{"role":"user","content":"x"}]'),
        (
            Endpoint.CHAT,
            ChatPrompt([{"role": "system", "content": "y"}]),
            "/v1/chat/completions",
            b'[{"role":"system","content":"y"}]',
        ),
        (Endpoint.COMPLETIONS, TextPrompt("x"), "/v1/completions", b'"prompt":"x"'),
    ],
)
async def test_request_of_each_endpoint(endpoint: Endpoint, prompt: Prompt, path: str, field: bytes) -> None:
    seen: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return stream_response(DONE)

    record = await sender_to(respond, endpoint).send(planned(prompt), Tally())
    body = seen[0].content
    assert record.failure is None
    assert path == seen[0].url.path
    assert all(part in body for part in (field, b'"max_tokens":5', b'"stream":true', b'"include_usage":true'))


async def test_conversation_needs_the_chat_endpoint() -> None:
    sender = sender_to(lambda _request: stream_response(DONE), Endpoint.COMPLETIONS)

    with pytest.raises(ValueError, match="chat endpoint"):
        await sender.send(planned(ChatPrompt([{}])), Tally())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ApiStatusError(429, ApiError(message="m")), "HTTP 429"),
        (StreamError(ApiError(message="m")), "error in the stream"),
        (StreamTruncated("m"), "truncated stream"),
        (FirstTokenTimeout("m"), "first token timeout"),
        (IdleTimeout("m"), "idle timeout"),
        (ConnectFailed("m"), "no connection"),
        (MalformedStream("m"), "malformed stream"),
        (EventTooLarge("m"), "malformed stream"),
        (ClientError("m"), "ClientError"),
    ],
)
def test_kinds_of_failures(error: ClientError, kind: str) -> None:
    assert Failure(kind=kind, message="m") == failure_of(error)
