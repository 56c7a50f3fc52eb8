import gc
import json

import httpx
import pytest
import trio

from layered_llm.client.chat import AsyncChatClient, ChatClient
from layered_llm.client.errors import ApiStatusError, ConnectFailed, MalformedStream, StreamTruncated
from support.client_fakes import DONE, chat_chunk, event, http_server, send_head, send_json, send_piece

MESSAGES = [{"role": "user", "content": "Hi"}]
MODELS = {"object": "list", "data": [{"id": "a"}, {"id": "b", "max_model_len": 8}, {"name": "no id"}]}


def http_with(response: httpx.Response) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(lambda _request: response))


async def test_models_are_listed_by_both_clients() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        assert "/v1/models" == request.url.path
        return httpx.Response(200, json=MODELS)

    transport = httpx.MockTransport(respond)
    with ChatClient("http://h", http=httpx.Client(transport=transport)) as client:
        assert ("a", "b") == client.models()
    async with AsyncChatClient("http://h", http=httpx.AsyncClient(transport=transport)) as async_client:
        assert ("a", "b") == await async_client.models()


@pytest.mark.parametrize("content", [b"<html>", b'{"data": 1}', b"[]"])
def test_what_is_no_list_of_models(content: bytes) -> None:
    with ChatClient("http://h", http=http_with(httpx.Response(200, content=content))) as client, pytest.raises(MalformedStream):
        client.models()


def test_models_behind_a_key() -> None:
    response = httpx.Response(401, json={"error": {"message": "wrong key", "code": "invalid_api_key"}})
    with ChatClient("http://h", http=http_with(response)) as client, pytest.raises(ApiStatusError, match="wrong key"):
        client.models()


async def test_nobody_listens() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    async with AsyncChatClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(ConnectFailed):
            await client.models()
        with pytest.raises(ConnectFailed):
            await read_texts(client)


async def read_texts(client: AsyncChatClient) -> list[str]:
    async with client.chat_stream(model="m", messages=MESSAGES, max_tokens=2) as stream:
        return [chunk.text async for chunk in stream]


async def test_real_socket_is_used_again_after_a_whole_answer() -> None:
    streams: set[int] = set()

    async def handle(request: bytes, stream: trio.SocketStream) -> None:
        streams.add(stream.socket.getpeername()[1])
        body = json.loads(request.partition(b"\r\n\r\n")[2])
        assert ("m", True, 2) == (body["model"], body["stream"], body["max_tokens"])
        await send_head(stream)
        for data in (event(chat_chunk("a")), event(chat_chunk("b")), DONE, b""):
            await send_piece(stream, data)

    async with http_server(handle) as url, AsyncChatClient(url) as client:
        assert [["a", "b"]] * 3 == [await read_texts(client) for _ in range(3)]

    assert 1 == len(streams)


async def test_leaving_early_hangs_up_at_once_and_leaks_no_generator() -> None:
    gone = trio.Event()

    async def handle(_request: bytes, stream: trio.SocketStream) -> None:
        await send_head(stream)
        await send_piece(stream, event(chat_chunk("a")))
        assert b"" == await stream.receive_some()
        gone.set()

    async with http_server(handle) as url, AsyncChatClient(url) as client:
        async with client.chat_stream(model="m", messages=MESSAGES) as stream:
            assert "a" == (await anext(stream)).text
        await gone.wait()
        gc.collect()


async def test_cancelling_hangs_up() -> None:
    gone = trio.Event()

    async def handle(_request: bytes, stream: trio.SocketStream) -> None:
        await send_head(stream)
        await send_piece(stream, event(chat_chunk("a")))
        assert b"" == await stream.receive_some()
        gone.set()

    async with http_server(handle) as url, AsyncChatClient(url) as client:
        with trio.CancelScope() as scope:
            async with client.chat_stream(model="m", messages=MESSAGES) as stream:
                async for _chunk in stream:
                    scope.cancel()
        assert scope.cancelled_caught
        await gone.wait()


async def test_server_that_dies_in_the_middle() -> None:
    async def handle(_request: bytes, stream: trio.SocketStream) -> None:
        await send_head(stream)
        await send_piece(stream, event(chat_chunk("a")))
        await stream.aclose()

    async with http_server(handle) as url, AsyncChatClient(url) as client:
        with pytest.raises(StreamTruncated, match="broke"):
            await read_texts(client)


async def test_blocking_client_over_a_real_socket() -> None:
    async def handle(request: bytes, stream: trio.SocketStream) -> None:
        if request.startswith(b"GET /v1/models"):
            await send_json(stream, MODELS)
            return
        await send_head(stream)
        for data in (event({"choices": [{"index": 0, "text": "a"}]}), DONE, b""):
            await send_piece(stream, data)

    def read(url: str) -> list[str]:
        with ChatClient(url) as client:
            model = client.models()[0]
            with client.completion_stream(model=model, prompt="Hi") as stream:
                return [chunk.text for chunk in stream]

    async with http_server(handle) as url:
        assert ["a"] == await trio.to_thread.run_sync(read, url)
