import os
import socket
from pathlib import Path

import trio

from support.http_client import COMPLETIONS, application
from support.http_engine import FakeEngine, accepting, text_delta
from support.http_server import http_request, read_until, running

EVENTS = 20


def accepted_socket(client: trio.SocketStream) -> socket.socket:
    """A duplicate of the server's end of the connection, which is in this process too."""
    name = client.socket.getsockname()
    for path in Path("/proc/self/fd").iterdir():
        try:
            found = socket.socket(fileno=os.dup(int(path.name)))
        except OSError:
            continue
        try:
            if found.type is socket.SOCK_STREAM and found.getpeername() == name:
                return found
        except OSError:
            pass
        found.close()
    raise AssertionError(name)


async def test_each_event_is_sent_as_it_comes_and_waits_for_no_other() -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine)) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", COMPLETIONS, {"prompt": "hi", "stream": True}))
        stream = await engine.wait_opened()
        await read_until(client, b"\r\n\r\n")
        reads = []
        for number in range(EVENTS):
            stream.emit(text_delta(f"token {number}"))
            reads.append(await read_until(client, b"\n\n"))

        assert [1] * EVENTS == [read.count(b"data: ") for read in reads]
        assert [f"token {number}" in read.decode() for number, read in enumerate(reads)] == [True] * EVENTS
        await client.aclose()


async def test_the_kernel_holds_no_small_write_of_a_connection_back() -> None:
    async with running(application(FakeEngine())) as server:
        client = await server.connect()
        await client.send_all(http_request("GET", "/health"))
        await read_until(client, b'"ok"')

        with accepted_socket(client) as accepted:
            assert 1 == accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await client.aclose()


async def test_an_event_stream_is_never_compressed() -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine)) as server:
        client = await server.connect()
        accepts = "Accept-Encoding: gzip, deflate, br, zstd\r\n"
        await client.send_all(http_request("POST", COMPLETIONS, {"prompt": "hi", "stream": True}, headers=accepts))
        await engine.wait_opened()
        head = (await read_until(client, b"\r\n\r\n")).lower()

        assert b"content-encoding" not in head
        assert b"cache-control: no-store\r\n" in head
        assert b"x-accel-buffering: no\r\n" in head
        await client.aclose()
