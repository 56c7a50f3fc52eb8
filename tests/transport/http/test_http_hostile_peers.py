import contextlib
import json
from collections.abc import AsyncIterator

import attrs
import pytest
import trio

from support.http_client import CHAT, SETTINGS, application
from support.http_engine import FakeEngine
from support.http_server import QUICK, H2Client, RunningServer, http_request, read_to_end, read_until, running

UPGRADE = (
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
FRAME_SIZE_ERROR = 6
SMALL = attrs.evolve(SETTINGS, max_body_bytes=1000)


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with running(application(FakeEngine(), settings=SMALL)) as server:
        yield server


async def check_healthy(server: RunningServer) -> None:
    client = await server.connect()
    await client.send_all(http_request("GET", "/health"))
    await read_until(client, b'{"status":"ok"}')
    await client.aclose()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET http://[/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 50,
        UPGRADE,
        UPGRADE + b"\x81\x85trailing bytes behind the upgrade",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: !!\r\n\r\n",
    ],
)
async def test_no_bytes_harm_more_than_their_own_connection(server: RunningServer, data: bytes) -> None:
    client = await server.connect()
    await client.send_all(data)
    await client.send_eof()
    with trio.fail_after(3):
        with contextlib.suppress(trio.BrokenResourceError):
            await read_to_end(client)
    await client.aclose()

    await check_healthy(server)


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n", b" 505 ", b"http_version_not_supported"),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b" 400 ",
            b"two_lengths",
        ),
    ],
)
async def test_nothing_behind_a_request_of_doubtful_framing_is_read(
    server: RunningServer, head: bytes, status: bytes, code: bytes
) -> None:
    client = await server.connect()
    await client.send_all(head + http_request("GET", "/health"))
    with trio.fail_after(3):
        answer = await read_to_end(client)
    assert (1, True, True) == (answer.count(b"x-request-id"), status in answer, code in answer)
    await client.aclose()


CLOSED = http_request("GET", "/health", headers="Connection: close\r\n")


@pytest.mark.parametrize("behind", [b"\r\n", b"\n", http_request("GET", "/v1/models"), b"\x00" * 100_000])
@pytest.mark.parametrize("request_of", [CLOSED, http_request("GET", "/health", version="1.0")], ids=["close", "HTTP/1.0"])
async def test_bytes_behind_the_last_request_of_a_connection_cost_it_nothing(
    server: RunningServer, behind: bytes, request_of: bytes
) -> None:
    client = await server.connect()
    await client.send_all(request_of + behind)
    with trio.fail_after(3):
        answer = await read_to_end(client)
    assert (1, True) == (answer.count(b"x-request-id"), answer.endswith(b'{"status":"ok"}'))
    await client.aclose()


async def test_an_empty_line_behind_a_body_is_no_request(server: RunningServer) -> None:
    client = await server.connect()
    await client.send_all(http_request("POST", "/nope", {}) + b"\r\n" + http_request("GET", "/health"))
    with trio.fail_after(3):
        answer = await read_until(client, b'{"status":"ok"}')
    assert [b"404", b"200"] == [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    await client.aclose()


async def test_a_body_over_the_limit_is_answered_though_its_sender_goes_on(server: RunningServer) -> None:
    body = b"x" * 3_000_000
    client = await server.connect()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"

    await client.send_all(head.encode() + body)

    assert b" 413 " in await read_to_end(client)
    await client.aclose()


async def test_a_sender_that_never_stops_is_left_after_a_while(server: RunningServer) -> None:
    client = await server.connect()
    await client.send_all(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 40}\r\n\r\n".encode())

    with trio.fail_after(3), contextlib.suppress(trio.BrokenResourceError):
        while True:
            await client.send_all(b"x" * 100_000)

    await client.aclose()


async def test_a_frame_over_the_limit_is_refused_by_its_header(server: RunningServer) -> None:
    client = await server.connect()
    settings, longest = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"
    await client.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + longest)
    with trio.fail_after(3):
        answer = await read_to_end(client)
    goaway = answer[answer.index(b"\x00\x00\x08\x07") :]
    assert FRAME_SIZE_ERROR == int.from_bytes(goaway[13:17], "big")
    await client.aclose()


async def test_an_http2_connection_that_asks_nothing_is_closed_when_it_was_idle_for_long() -> None:
    options = attrs.evolve(QUICK, idle_timeout_s=0.1)
    async with running(application(FakeEngine()), options=options) as server:
        client = await server.connect()
        await client.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        with trio.fail_after(3):
            await read_to_end(client)
        await client.aclose()


async def test_http2_data_behind_an_early_response_harms_nothing(server: RunningServer) -> None:
    client = H2Client(await server.connect())
    await client.start()
    stream_id = client.connection.get_next_available_stream_id()
    headers = [(":method", "POST"), (":path", CHAT), (":scheme", "http"), (":authority", "test")]
    client.connection.send_headers(stream_id, headers)
    client.data[stream_id] = b""
    client.connection.send_data(stream_id, b"x" * 2000)
    await client.flush()
    while stream_id not in client.ended:
        await client.pump()
    assert json.loads(client.data[stream_id])["error"]["code"] == "request_entity_too_large"

    client.connection.send_data(stream_id, b"x" * 2000, end_stream=True)
    await client.flush()

    other = client.connection.get_next_available_stream_id()
    client.data[other] = b""
    health = [(":method", "GET"), (":path", "/health"), (":scheme", "http"), (":authority", "test")]
    client.connection.send_headers(other, health, end_stream=True)
    await client.flush()
    while other not in client.ended:
        await client.pump()
    assert client.data[other] == b'{"status":"ok"}'
    await client.tcp.aclose()
    await check_healthy(server)


async def test_an_upgrade_to_a_websocket_is_refused(server: RunningServer) -> None:
    client = await server.connect()
    await client.send_all(UPGRADE)

    assert b" 403 " in await read_until(client, b"\r\n\r\n")

    await client.aclose()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in (b"a..localhost", b".localhost", b"xn--\xff.localhost", b"x" * 64 + b".localhost")),
        *((host, 403) for host in (b"a..b", b"..", b".", b"x" * 64, b"xn--\xff", b"[::1", b"a:b:c", b"\xff", b"localhost..")),
    ],
)
async def test_a_host_that_is_no_name_is_answered_like_any(server: RunningServer, host: bytes, status: int) -> None:
    client = await server.connect()
    await client.send_all(b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    answer = await read_until(client, b"}")
    await client.aclose()

    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("path", ["/nope", "/health", CHAT])
async def test_an_answer_before_the_body_is_there_says_that_the_connection_ends(server: RunningServer, path: str) -> None:
    client = await server.connect()
    await client.send_all(http_request("PUT", path, {}).partition(b"{}")[0])
    head = await read_until(client, b"\r\n\r\n")
    with trio.fail_after(3):
        rest = await read_to_end(client)
    await client.aclose()

    assert b"\r\nconnection: close\r\n" in head.lower()
    assert b"HTTP/1.1" not in rest


async def test_an_answer_behind_the_whole_body_keeps_the_connection(server: RunningServer) -> None:
    client = await server.connect()
    answers = []
    for path in (CHAT, "/health", CHAT):
        await client.send_all(http_request("POST" if path == CHAT else "GET", path, {} if path == CHAT else None))
        answers.append(await read_until(client, b"}"))
        assert b"connection: close" not in answers[-1].lower()
    await client.aclose()

    assert [b"400", b"200", b"400"] == [answer.partition(b"HTTP/1.1 ")[2][:3] for answer in answers]


@pytest.mark.parametrize(
    "fields",
    [
        [(":method", "GET"), (":path", "/v1/\u00ff"), (":scheme", "http"), (":authority", "test")],
        [(":method", "G\u00cbT"), (":path", "/health"), (":scheme", "http"), (":authority", "test")],
        [(":method", "CONNECT"), (":authority", "test")],
    ],
    ids=["path", "method", "no path"],
)
@pytest.mark.parametrize("has_body", [False, True])
async def test_an_http2_request_that_cannot_be_read_is_reset_alone(
    server: RunningServer, fields: list[tuple[str, str]], has_body: bool
) -> None:
    client = H2Client(await server.connect())
    await client.start()
    client.connection.config.validate_outbound_headers = False
    hostile = client.connection.get_next_available_stream_id()
    client.connection.send_headers(hostile, fields, end_stream=not has_body)
    if has_body:
        client.connection.send_data(hostile, b"{}", end_stream=True)
    other = await client.post(CHAT, {})
    while other not in client.ended:
        await client.pump()
    await client.tcp.aclose()

    assert {hostile} == client.reset_streams
    assert b"messages" in client.data[other]
