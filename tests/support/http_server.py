"""The application on a real hypercorn and real sockets, in the test's own trio run."""

import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any

import attrs
import h2.config
import h2.connection
import h2.events
import h2.settings
import trio
from hypercorn.typing import ASGIFramework

from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.hypercorn_server.listening import bind_sockets
from layered_llm.transport.http.hypercorn_server.options import STANDARD_OPTIONS, ServerOptions
from layered_llm.transport.http.hypercorn_server.serving import serve
from layered_llm.transport.http.hypercorn_server.tls import TlsFiles

QUICK = attrs.evolve(
    STANDARD_OPTIONS, fin_poll_interval_s=0.02, write_timeout_s=0.3, idle_timeout_s=5.0, graceful_timeout_s=0.5
)


@attrs.frozen(kw_only=True, eq=False)
class RunningServer:
    """`stop` asks for a shutdown; `stopped` is set when the server has left."""

    port: int
    stop: trio.Event
    stopped: trio.Event

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def running(
    app: ASGIFramework, *, options: ServerOptions = QUICK, drain: Drain | None = None, tls: TlsFiles | None = None
) -> AsyncIterator[RunningServer]:
    (sock,) = bind_sockets("127.0.0.1", 0, backlog=16)
    server = RunningServer(port=sock.getsockname()[1], stop=trio.Event(), stopped=trio.Event())

    async def run(task_status: "trio.TaskStatus[list[str]]") -> None:
        await serve(
            app,
            sockets=[sock],
            options=options,
            tls=tls,
            on_shutdown_requested=(drain or Drain(0.1)).begin,
            shutdown_trigger=server.stop.wait,
            task_status=task_status,
        )
        server.stopped.set()

    with sock:
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            with trio.fail_after(10):
                yield server
            server.stop.set()


def http_request(
    method: str, path: str, body: Mapping[str, Any] | None = None, *, version: str = "1.1", headers: str = ""
) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    return f"{method} {path} HTTP/{version}\r\nHost: test\r\n{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def read_until(stream: "trio.SocketStream | trio.SSLStream[trio.SocketStream]", marker: bytes) -> bytes:
    """All bytes up to and behind the first read that completes `marker`."""
    data = b""
    while marker not in data:
        more = await stream.receive_some()
        assert more, f"end of stream before {marker!r}: {data!r}"
        data += more
    return data


async def read_to_end(stream: trio.SocketStream) -> bytes:
    data = b""
    while more := await stream.receive_some():
        data += more
    return data


async def reset(stream: "trio.SocketStream | trio.SSLStream[trio.SocketStream]") -> None:
    """Closes with RST."""
    transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()


@attrs.define(eq=False)
class H2Client:
    """One HTTP/2 connection with prior knowledge; windows open as data is read, unless `hold_windows`."""

    tcp: trio.SocketStream | trio.SSLStream[trio.SocketStream]
    hold_windows: bool = False
    data: dict[int, bytes] = attrs.field(init=False, factory=dict)
    ended: set[int] = attrs.field(init=False, factory=set)
    reset_streams: set[int] = attrs.field(init=False, factory=set)
    connection: h2.connection.H2Connection = attrs.field(
        init=False, factory=lambda: h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    )

    async def start(self) -> None:
        self.connection.initiate_connection()
        await self.flush()

    async def post(self, path: str, body: Mapping[str, Any]) -> int:
        stream_id = await self.begin_post(path)
        self.connection.send_data(stream_id, json.dumps(body).encode(), end_stream=True)
        await self.flush()
        return stream_id

    async def post_large(self, path: str, data: bytes) -> int:
        """A body beyond the windows: it is sent as the server opens them."""
        stream_id = await self.begin_post(path)
        while data:
            room = min(self.connection.local_flow_control_window(stream_id), self.connection.max_outbound_frame_size)
            if room:
                self.connection.send_data(stream_id, data[:room], end_stream=len(data) <= room)
                data = data[room:]
                await self.flush()
            else:
                await self.pump()
        return stream_id

    async def begin_post(self, path: str) -> int:
        """Opens a stream by its headers."""
        stream_id = self.connection.get_next_available_stream_id()
        headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "test")]
        self.connection.send_headers(stream_id, headers)
        self.data[stream_id] = b""
        await self.flush()
        return stream_id

    async def flush(self) -> None:
        await self.tcp.send_all(self.connection.data_to_send())

    async def pump(self) -> None:
        """Takes one read's worth of frames."""
        received = await self.tcp.receive_some()
        assert received, "the server closed the connection"
        for event in self.connection.receive_data(bytes(received)):
            match event:
                case h2.events.DataReceived(stream_id=int(stream_id), data=bytes(data), flow_controlled_length=int(length)):
                    self.data[stream_id] += data
                    if not self.hold_windows:
                        self.connection.acknowledge_received_data(length, stream_id)
                case h2.events.StreamEnded(stream_id=int(stream_id)):
                    self.ended.add(stream_id)
                case h2.events.StreamReset(stream_id=int(stream_id)):
                    self.reset_streams.add(stream_id)
                case _:
                    pass
        await self.flush()
