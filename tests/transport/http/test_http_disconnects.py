from collections.abc import Awaitable, Callable

import h2.errors
import pytest
import trio

from layered_llm.domain.finish import AbortReason, FinishReason
from support.http_client import CHAT, MESSAGES, application
from support.http_engine import FakeEngine, accepting, answering, ended, text_delta
from support.http_server import H2Client, http_request, read_until, reset, running

BODY = {"messages": MESSAGES}
STREAM_BODY = {**BODY, "stream": True}
END = text_delta("x", finish_reason=FinishReason.STOP)


async def fin(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def half_close(stream: trio.SocketStream) -> None:
    await stream.send_eof()


LEAVING = pytest.mark.parametrize("leave", [fin, reset, half_close])
STREAMING = pytest.mark.parametrize("body", [BODY, STREAM_BODY], ids=["whole", "stream"])
BEHIND = pytest.mark.parametrize(
    "behind", [b"", b"\r\n", http_request("GET", "/health")], ids=["nothing", "stray CRLF", "pipelined"]
)


@LEAVING
@STREAMING
@BEHIND
async def test_a_peer_that_leaves_aborts_its_request_once(
    leave: Callable[[trio.SocketStream], Awaitable[None]], body: dict[str, object], behind: bytes
) -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine)) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, body) + behind)
        stream = await engine.wait_opened()
        if "stream" in body:
            await read_until(client, b"\r\n\r\n")

        await leave(client)
        await stream.closed.wait()

        await client.aclose()
    assert engine.aborts == [AbortReason.CLIENT_GONE]


@STREAMING
async def test_a_peer_that_leaves_before_the_verdict_aborts_its_request(body: dict[str, object]) -> None:
    engine = FakeEngine()
    async with running(application(engine)) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, body))
        stream = await engine.wait_opened()

        await client.aclose()
        await stream.closed.wait()

    assert engine.aborts == [AbortReason.CLIENT_GONE]


async def test_a_peer_that_leaves_in_the_middle_of_its_body_opens_nothing() -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine)) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, BODY)[:-5])
        await client.aclose()
        other = await server.connect()
        await other.send_all(http_request("GET", "/health", headers="Connection: close\r\n"))
        await read_until(other, b'{"status":"ok"}')
        await other.aclose()

    assert engine.streams == []


async def test_a_pipelined_request_is_answered_after_the_first() -> None:
    async with running(application(FakeEngine(answering(END, ended())))) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, BODY) + http_request("GET", "/health"))

        answers = await read_until(client, b'{"status":"ok"}')

        assert answers.index(b"chat.completion") < answers.index(b'{"status":"ok"}')
        await client.aclose()


async def rst_stream(client: H2Client, stream_id: int) -> None:
    client.connection.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
    await client.flush()


async def goaway(client: H2Client, _stream_id: int) -> None:
    client.connection.close_connection()
    await client.flush()


async def h2_fin(client: H2Client, _stream_id: int) -> None:
    await client.tcp.aclose()


async def h2_rst(client: H2Client, _stream_id: int) -> None:
    await reset(client.tcp)


@pytest.mark.parametrize("leave", [rst_stream, goaway, h2_fin, h2_rst])
@STREAMING
async def test_an_http2_peer_that_leaves_aborts_its_request_once(
    leave: Callable[[H2Client, int], Awaitable[None]], body: dict[str, object]
) -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine)) as server:
        client = H2Client(await server.connect())
        await client.start()
        stream_id = await client.post(CHAT, body)
        stream = await engine.wait_opened()

        await leave(client, stream_id)
        await stream.closed.wait()

        await client.tcp.aclose()
    assert engine.aborts == [AbortReason.CLIENT_GONE]


async def test_a_reset_stream_leaves_the_others_of_its_connection_alone() -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine)) as server:
        client = H2Client(await server.connect())
        await client.start()
        gone, kept = await client.post(CHAT, STREAM_BODY), await client.post(CHAT, STREAM_BODY)
        first, second = await engine.wait_opened(1), await engine.wait_opened(2)

        await rst_stream(client, gone)
        await first.closed.wait()
        second.emit(END, ended())
        while kept not in client.ended:
            await client.pump()

        assert client.data[kept].endswith(b"data: [DONE]\n\n")
        await client.tcp.aclose()
    assert [stream.aborts for stream in engine.streams] == [[AbortReason.CLIENT_GONE], []]


async def test_an_error_in_an_http2_stream_ends_it_in_good_order() -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine)) as server:
        client = H2Client(await server.connect())
        await client.start()
        stream_id = await client.post(CHAT, STREAM_BODY)
        stream = await engine.wait_opened()

        stream.emit_error(ZeroDivisionError("boom"))
        while stream_id not in client.ended:
            await client.pump()

        assert b'"code":"internal_error"' in client.data[stream_id]
        assert client.data[stream_id].endswith(b"data: [DONE]\n\n")
        await client.tcp.aclose()
