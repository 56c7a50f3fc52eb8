import contextlib
import os
import re
import socket
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import cast

import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing
from hypercorn.config import Config, Sockets
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState, LifespanState
from hypercorn.utils import wrap_app

from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.hypercorn_server.h2_protocol import BoundedH2Protocol
from layered_llm.transport.http.hypercorn_server.listening import CannotListen, bind_sockets
from layered_llm.transport.http.hypercorn_server.options import NO_LIMIT, STANDARD_OPTIONS, configure
from layered_llm.transport.http.hypercorn_server.tcp_server import WatchedTCPServer, peer_has_left, set_tcp_options
from layered_llm.transport.http.hypercorn_server.worker import (
    UnsupportedHypercorn,
    install,
    installed_hypercorn,
    serve_observed,
)
from support.http_client import CHAT, COMPLETIONS, MESSAGES, application
from support.http_engine import FakeEngine, FakeStream, accepting, answering, ended, text_delta
from support.http_server import QUICK, H2Client, http_request, read_to_end, read_until, running

BODY = {"messages": MESSAGES}
STREAM_BODY = {**BODY, "stream": True}
END = text_delta("x", finish_reason=FinishReason.STOP)
FLOOD_PIECE = "x" * 10_000
TCP_OPTIONS = ("TCP_NODELAY", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")


async def flood(stream: FakeStream) -> None:
    """Has always something more for the client."""
    while not stream.is_over:
        if not stream._events:
            stream.emit(text_delta(FLOOD_PIECE))
        await trio.lowlevel.checkpoint()


@contextlib.contextmanager
def open_sockets() -> Iterator[list[socket.socket]]:
    """Duplicates of all sockets of this process, which is the server too."""
    with contextlib.ExitStack() as kept:
        found = []
        for link in Path("/proc/self/fd").iterdir():
            # The descriptor of the listing itself is closed again; what is no socket is passed over.
            with contextlib.suppress(OSError):
                found.append(kept.enter_context(socket.socket(fileno=os.dup(int(link.name)))))
        yield found


def server_side(sockets: list[socket.socket], client: trio.SocketStream) -> socket.socket:
    """The server's end of a connection."""
    ends = client.socket.getpeername(), client.socket.getsockname()
    (found,) = (sock for sock in sockets if names_of(sock) == ends)
    return found


def names_of(sock: socket.socket) -> tuple[object, object]:
    """Its own address, and its peer's: None of one that listens or has lost its peer."""
    try:
        return sock.getsockname(), sock.getpeername()
    except OSError:
        return sock.getsockname(), None


# quart-trio cancels the task that sends the end of a response


@pytest.mark.parametrize("body", [BODY, STREAM_BODY], ids=["whole", "stream"])
@pytest.mark.parametrize(("http_version", "headers"), [("1.1", "Connection: close\r\n"), ("1.0", "")], ids=["close", "1.0"])
async def test_a_connection_that_is_not_kept_closes_behind_its_response(
    body: dict[str, object], http_version: str, headers: str
) -> None:
    async with running(application(FakeEngine(answering(END, ended())))) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, body, version=http_version, headers=headers))

        with trio.fail_after(1):
            response = await read_to_end(client)

        assert b"200" in response
        await client.aclose()


async def test_a_kept_connection_closes_when_it_was_idle_for_long() -> None:
    options = attrs.evolve(QUICK, idle_timeout_s=0.2)
    async with running(application(FakeEngine(answering(END, ended()))), options=options) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, STREAM_BODY))
        await read_until(client, b"0\r\n\r\n")

        with trio.fail_after(1):
            assert await read_to_end(client) == b""

        await client.aclose()


@pytest.mark.parametrize("request_before", [b"", http_request("GET", "/health")], ids=["unused", "kept"])
async def test_an_idle_connection_is_released_as_soon_as_its_peer_leaves(request_before: bytes) -> None:
    async with running(application(FakeEngine())) as server:
        client = await server.connect()
        if request_before:
            await client.send_all(request_before)
            await read_until(client, b'"ok"')

        await client.send_eof()

        with trio.fail_after(1):
            assert await read_to_end(client) == b""
        await client.aclose()


async def test_a_kept_connection_serves_request_after_request() -> None:
    async with running(application(FakeEngine(answering(END, ended())))) as server:
        client = await server.connect()
        for _ in range(20):
            await client.send_all(http_request("POST", CHAT, STREAM_BODY))
            await read_until(client, b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await client.aclose()


# hypercorn's writes cannot be cancelled


async def test_a_peer_that_does_not_read_is_dropped_and_its_request_aborted() -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine)) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, STREAM_BODY))
        stream = await engine.wait_opened()

        with trio.fail_after(3):
            await flood(stream)

        await client.aclose()
    assert engine.aborts == [AbortReason.SLOW_READER]


async def test_a_peer_that_does_not_read_does_not_hold_a_shutdown() -> None:
    engine = FakeEngine(accepting)
    options = attrs.evolve(QUICK, write_timeout_s=60.0)
    async with running(application(engine), options=options) as server, trio.open_nursery() as nursery:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, STREAM_BODY))
        nursery.start_soon(flood, await engine.wait_opened())
        await trio.sleep(0.1)
        server.stop.set()

        with trio.fail_after(2):
            await server.stopped.wait()

        await client.aclose()
    assert engine.aborts == [AbortReason.CLIENT_GONE]


# hypercorn's HTTP/2 streams have no backpressure, and no end


async def test_an_http2_stream_whose_window_stays_shut_holds_little_and_is_reset() -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine)) as server:
        client = H2Client(await server.connect(), hold_windows=True)
        await client.start()
        stream_id = await client.post(CHAT, STREAM_BODY)
        stream = await engine.wait_opened()
        pieces = 0
        async with trio.open_nursery() as nursery:

            async def feed() -> None:
                nonlocal pieces
                while not stream.is_over:
                    if not stream._events:
                        stream.emit(text_delta(FLOOD_PIECE))
                        pieces += 1
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(feed)
            while stream_id not in client.reset_streams:
                await client.pump()

        assert len(client.data[stream_id]) <= 65_535
        assert pieces * len(FLOOD_PIECE) < 300_000
        await client.tcp.aclose()
    assert engine.aborts == [AbortReason.SLOW_READER]


async def test_a_stalled_http2_stream_stalls_no_other_of_its_connection() -> None:
    engine = FakeEngine(accepting)
    async with running(application(engine), options=attrs.evolve(QUICK, write_timeout_s=60.0)) as server:
        client = H2Client(await server.connect(), hold_windows=True)
        # The connection's window is wide, so that only the streams' own are shut.
        await client.start()
        client.connection.increment_flow_control_window(1 << 20)
        stalled = await client.post(CHAT, STREAM_BODY)
        first = await engine.wait_opened(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood, first)
            while len(client.data[stalled]) < 65_535:
                await client.pump()
            other = await client.post(CHAT, STREAM_BODY)
            (await engine.wait_opened(2)).emit(END, ended())
            while other not in client.ended:
                await client.pump()
            await client.tcp.aclose()


# HTTP/2: a stream is forgotten before it is told


class ToldStream:
    """An HTTP/2 stream that notes that it was told something, after a checkpoint."""

    def __init__(self) -> None:
        self.is_told = False

    async def handle(self, event: object) -> None:
        await trio.lowlevel.checkpoint()
        self.is_told = True


async def ignore(event: Event) -> None:
    await trio.lowlevel.checkpoint()


async def test_every_http2_stream_hears_of_the_end_of_its_connection_though_the_reader_is_cancelled() -> None:
    app, task_group = cast("AppWrapper", None), cast("TaskGroup", None)
    context, state = WorkerContext(None), ConnectionState(LifespanState())
    protocol = BoundedH2Protocol(QUICK, app, Config(), context, task_group, state, False, None, None, ignore)
    streams = {1: ToldStream(), 3: ToldStream()}
    protocol.streams.update(cast("dict[int, HTTPStream | WSStream]", streams))

    with trio.CancelScope() as reader:
        reader.cancel()
        await protocol.handle(Closed())

    assert [True, True] == [stream.is_told for stream in streams.values()]


# Defaults that freeze or break connections


async def test_many_http2_frames_of_one_read_let_others_in_between() -> None:
    frames, turns = 5000, 0
    priority = b"\x00\x00\x05\x02\x00" + (1).to_bytes(4, "big") + b"\x00\x00\x00\x00\x10"
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"

    app, task_group = cast("AppWrapper", None), cast("TaskGroup", None)
    context, state = WorkerContext(None), ConnectionState(LifespanState())

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        protocol = BoundedH2Protocol(QUICK, app, Config(), context, task_group, state, False, None, None, ignore)
        protocol.connection.initiate_connection()
        nursery.start_soon(others)
        await protocol.handle(RawData(preface + frames * priority))
        nursery.cancel_scope.cancel()

    assert turns >= frames // 200


def test_the_options_reach_the_configuration() -> None:
    config = Config()

    configure(config, STANDARD_OPTIONS)

    assert config.keep_alive_max_requests == NO_LIMIT
    assert config.keep_alive_timeout >= 75
    assert config.h2_max_concurrent_streams == 1024


async def test_an_http2_connection_serves_more_requests_than_hypercorn_would_and_freezes_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Upstream's default of 1,000, which a server that says nothing about it has, made small.
    monkeypatch.setattr(Config, "keep_alive_max_requests", 3)
    engine = FakeEngine(accepting)
    async with running(application(engine)) as server:
        client = H2Client(await server.connect())
        await client.start()
        early = await client.post(CHAT, STREAM_BODY)
        stream = await engine.wait_opened()
        for _ in range(5):
            other = await client.post("/v1/no-such-endpoint", BODY)
            while other not in client.ended:
                await client.pump()

        stream.emit(END, ended())
        with trio.fail_after(3):
            while early not in client.ended:
                await client.pump()

        assert client.data[early].endswith(b"data: [DONE]\n\n")
        await client.tcp.aclose()


def test_installing_sets_the_defaults_of_every_configuration() -> None:
    install(STANDARD_OPTIONS, lambda: None, installed=installed_hypercorn())

    assert Config().keep_alive_max_requests == NO_LIMIT
    assert Config().graceful_timeout == STANDARD_OPTIONS.graceful_timeout_s


@pytest.mark.parametrize("other", ["0.17.3", "0.19.0", "0.180.0", "1.0"])
def test_another_hypercorn_is_refused_with_a_way_out(other: str) -> None:
    with pytest.raises(UnsupportedHypercorn, match="hypercorn -k trio") as caught:
        install(STANDARD_OPTIONS, lambda: None, installed=other)

    assert other in str(caught.value)


def test_the_installed_hypercorn_is_the_one_that_was_checked() -> None:
    assert version("hypercorn").startswith("0.18.")


# Peers that vanish


async def test_connections_have_keepalive_and_a_user_timeout() -> None:
    listener, *_ = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        client = await trio.testing.open_stream_to_socket_listener(listener)
        async with client, await listener.accept() as accepted:
            sock = accepted.socket
            set_tcp_options(sock, STANDARD_OPTIONS)

            values = [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in TCP_OPTIONS]
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert values == [1, 30, 10, 3, 60_000]


async def test_every_connection_of_a_server_has_the_tcp_options_that_it_was_given() -> None:
    options = attrs.evolve(
        QUICK, tcp_keepalive_idle_s=7, tcp_keepalive_interval_s=5, tcp_keepalive_probes=2, tcp_user_timeout_ms=12_345
    )
    async with running(application(FakeEngine()), options=options) as server:
        client = await server.connect()
        await client.send_all(http_request("GET", "/health"))
        await read_until(client, b'"ok"')

        with open_sockets() as sockets:
            sock = server_side(sockets, client)
            assert 1 == sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            values = [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in TCP_OPTIONS]
        assert [1, 7, 5, 2, 12_345] == values
        await client.aclose()


async def test_a_peer_that_takes_nothing_for_the_user_timeout_is_gone_for_the_kernel_too() -> None:
    # A window that stays shut counts as silence to Linux, though the peer's kernel answers its probes.
    engine = FakeEngine(accepting)
    options = attrs.evolve(QUICK, write_timeout_s=60.0, tcp_user_timeout_ms=300)
    async with running(application(engine), options=options) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, STREAM_BODY))
        stream = await engine.wait_opened()

        with trio.fail_after(8):
            await flood(stream)

        await client.aclose()
    assert engine.aborts == [AbortReason.CLIENT_GONE]


async def test_the_kernel_tells_that_a_peer_left_behind_unread_bytes() -> None:
    listener, *_ = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        client = await trio.testing.open_stream_to_socket_listener(listener)
        async with await listener.accept() as accepted:
            await client.send_all(b"unread")
            assert not peer_has_left(accepted.socket)

            await client.aclose()

            assert peer_has_left(accepted.socket)
        assert peer_has_left(accepted.socket)


async def test_a_unix_socket_is_served_without_tcp_options() -> None:
    left, right = trio.socket.socketpair()

    set_tcp_options(left, STANDARD_OPTIONS)

    assert not peer_has_left(left)
    left.close()
    right.close()


# The end of a connection and its last writes


class DeafProtocol:
    """What a connection tells its protocol, when nothing follows from it."""

    async def handle(self, event: Event) -> None:
        await trio.lowlevel.checkpoint()


def connection_of(stream: trio.SocketStream) -> WatchedTCPServer:
    """A connection whose protocol is over, and which nobody runs."""
    app = cast("AppWrapper", None)
    connection = WatchedTCPServer(STANDARD_OPTIONS, app, Config(), WorkerContext(None), LifespanState(), stream)
    connection.protocol = cast("ProtocolWrapper", DeafProtocol())
    return connection


async def test_an_exchange_that_ends_behind_its_connection_begins_no_idle_time() -> None:
    # It would hold the socket until that is over.
    ours, peers = (trio.SocketStream(sock) for sock in trio.socket.socketpair())
    connection = connection_of(ours)
    async with ours, TaskGroup() as tasks:
        connection._task_group = tasks
        await peers.aclose()
        await connection._read_data()

        await connection.protocol_send(Updated(idle=True))

        assert tasks._nursery is not None
        assert not tasks._nursery.child_tasks


async def test_what_a_cancelled_exchange_has_to_write_is_not_lost_to_the_others() -> None:
    # Over HTTP/2 they share the connection's state: a frame that is missing spoils all that follow.
    ours, peers = (trio.SocketStream(sock) for sock in trio.socket.socketpair())
    connection, first, second = connection_of(ours), b"x" * 1_000_000, b"frames of the cancelled one"
    received, exchange = bytearray(), trio.CancelScope()

    async def write_second() -> None:
        with exchange:
            await connection.protocol_send(RawData(second))

    async with ours, peers, trio.open_nursery() as nursery:
        nursery.start_soon(connection.protocol_send, RawData(first))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(write_second)
        await trio.testing.wait_all_tasks_blocked()
        exchange.cancel()
        with trio.fail_after(3):
            while len(received) < len(first + second):
                received += await peers.receive_some()

    assert first + second == received


async def test_the_end_of_a_connection_comes_behind_a_write_that_is_under_way() -> None:
    ours, peers = (trio.SocketStream(sock) for sock in trio.socket.socketpair())
    connection, data = connection_of(ours), b"x" * 1_000_000
    async with ours, peers, trio.open_nursery() as nursery:
        nursery.start_soon(connection.protocol_send, RawData(data))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(connection.protocol_send, Closed())
        await trio.testing.wait_all_tasks_blocked()

        with trio.fail_after(3):
            assert data == await read_to_end(peers)


# Shutdown


async def test_streams_end_in_good_order_when_the_server_stops() -> None:
    drain, engine = Drain(0.2), FakeEngine(accepting)
    async with running(application(engine, drain=drain), drain=drain) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, STREAM_BODY))
        stream = await engine.wait_opened()
        await read_until(client, b"\r\n\r\n")

        server.stop.set()
        while not drain.is_active:
            await trio.sleep(0.01)
        stream.emit(text_delta("more"))
        body = await read_to_end(client)

        assert b'{"content":"more"}' in body
        assert b'"code":"shutting_down"' in body
        assert body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        with trio.fail_after(1):
            await server.stopped.wait()
        await client.aclose()
    assert engine.aborts == [AbortReason.SHUTDOWN]


async def test_a_stream_that_ends_in_time_is_not_cut_by_the_shutdown() -> None:
    drain, engine = Drain(0.3), FakeEngine(accepting)
    async with running(application(engine, drain=drain), drain=drain) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", COMPLETIONS, {"prompt": "x"}))
        stream = await engine.wait_opened()

        server.stop.set()
        while not drain.is_active:
            await trio.sleep(0.01)
        stream.emit(END, ended())

        assert b'"finish_reason":"stop"' in await read_until(client, b'"usage"')
        await client.aclose()
    assert engine.aborts == []


async def test_a_kept_connection_hears_503_while_the_server_drains() -> None:
    drain, engine = Drain(0.3), FakeEngine(accepting)
    async with running(application(engine, drain=drain), drain=drain) as server:
        client = await server.connect()
        await client.send_all(http_request("GET", "/health"))
        await read_until(client, b'"ok"')

        drain.begin()
        await client.send_all(http_request("GET", "/health"))

        assert b" 503 " in await read_until(client, b'"stopping"')
        await client.aclose()


# Sockets


def test_a_taken_port_is_an_error_that_names_it() -> None:
    (first,) = bind_sockets("127.0.0.1", 0, backlog=1)
    with first:
        port = first.getsockname()[1]

        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            bind_sockets("127.0.0.1", port, backlog=1)


@pytest.mark.parametrize("host", ["host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_an_error(host: str) -> None:
    with pytest.raises(CannotListen, match=host):
        bind_sockets(host, 0, backlog=1)


@pytest.mark.parametrize("host", [".", "a..b", "x" * 70])
def test_what_can_be_no_hosts_name_is_an_error(host: str) -> None:
    with pytest.raises(CannotListen, match=rf"{re.escape(host)}:0: this is no name of a host"):
        bind_sockets(host, 0, backlog=1)


def test_bound_sockets_listen_at_once_and_are_closed_on_exec() -> None:
    (sock,) = bind_sockets("127.0.0.1", 0, backlog=1)
    with sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
        assert not sock.get_inheritable()


async def test_the_sockets_that_hypercorn_passes_to_its_workers_are_inherited_by_no_child_of_theirs() -> None:
    (sock,) = bind_sockets("127.0.0.1", 0, backlog=1)
    sock.set_inheritable(True)
    sockets = Sockets(secure_sockets=[], insecure_sockets=[sock], quic_sockets=[])
    app = wrap_app(application(FakeEngine()), 0, "asgi")
    with sock:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve_observed, lambda: None, app, Config(), sockets=sockets))

            assert not sock.get_inheritable()
            nursery.cancel_scope.cancel()


def test_all_addresses_of_a_host_share_one_port() -> None:
    bound = bind_sockets("localhost", 0, backlog=1)

    assert len({sock.getsockname()[1] for sock in bound}) == 1
    for sock in bound:
        sock.close()


@pytest.mark.parametrize(
    ("method", "path", "line"),
    [
        ("GET", "/health", b"HTTP/1.1 200 OK\r\n"),
        ("GET", "/nope", b"HTTP/1.1 404 Not Found\r\n"),
        ("GET", CHAT, b"HTTP/1.1 405 Method Not Allowed\r\n"),
        ("OPTIONS", CHAT, b"HTTP/1.1 204 No Content\r\n"),
    ],
)
async def test_a_status_has_its_reason_phrase(method: str, path: str, line: bytes) -> None:
    async with running(application(FakeEngine())) as server:
        client = await server.connect()
        await client.send_all(http_request(method, path))
        answer = await read_until(client, b"\r\n\r\n")
        await client.aclose()

    assert line == answer[: len(line)]


async def test_a_client_that_waits_for_it_is_told_to_continue() -> None:
    async with running(application(FakeEngine())) as server:
        client = await server.connect()
        await client.send_all(http_request("POST", CHAT, {}, headers="Expect: 100-continue\r\n").partition(b"{}")[0])
        answer = await read_until(client, b"\r\n\r\n")
        await client.aclose()

    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n")


@pytest.mark.parametrize("settings", ["AAMAAABkAAQAoAAAAAIAAAAA", "!!", ""])
async def test_an_upgrade_to_http2_is_ignored(settings: str) -> None:
    headers = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: {settings}\r\n"
    async with running(application(FakeEngine())) as server:
        client = await server.connect()
        await client.send_all(f"GET /health HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        answer = await read_until(client, b'{"status":"ok"}')
        await client.aclose()

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_data_on_a_closed_http2_stream_is_answered_by_a_reset_at_once() -> None:
    async with running(application(FakeEngine(answering(END, ended())))) as server:
        client = H2Client(await server.connect())
        await client.start()
        stream_id = await client.post(CHAT, BODY)
        while stream_id not in client.ended:
            await client.pump()
        await client.tcp.send_all(b"\x00\x00\x01\x00\x00" + stream_id.to_bytes(4, "big") + b"x")
        with trio.fail_after(3):
            answer = await read_until(client.tcp, b"\x03\x00" + stream_id.to_bytes(4, "big"))
        await client.tcp.aclose()

    assert answer.endswith(b"\x00\x00\x04\x03\x00" + stream_id.to_bytes(4, "big") + (5).to_bytes(4, "big"))
