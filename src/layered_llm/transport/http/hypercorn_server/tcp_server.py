"""Connections whose peers cannot hold us: hypercorn 0.18's TCPServer with bounded writes and a watch for silent ends.

Must not know: HTTP, the application.

Faults of upstream:
* `protocol_send` shields a write without a deadline, so that a peer that does not read holds its handler for ever, and a
  shutdown; it takes its lock outside of the shield, so that a cancelled exchange can lose frames of the others.
* After the end of an idle connection its timer runs on, and holds the socket until it ends.
* A connection is closed with the rest of a refused body unread: the kernel then resets it, and the client never sees the
  response that says why.
* An exception of the protocol, such as for bytes behind a websocket's upgrade, ends the whole server.
* When the peer sends bytes behind its request, the reader is parked until the response is complete, and does not see the
  end of the connection. The kernel does: it leaves ESTABLISHED.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, cast

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, LifespanState

from layered_llm.transport.http.hypercorn_server.options import SLOW_READER, ServerOptions

_TCP_ESTABLISHED: Final = 1
_TCP_STATE_BYTES: Final = 1
"""The first field of Linux's `struct tcp_info` is the state, one byte."""
_CLOSE_GRACE_S: Final = 1.0
_LINGER_S: Final = 1.0
"""How long a peer may go on sending behind the last byte that it gets."""


class WatchedTCPServer(TCPServer):
    """Serves one connection; stands in for `hypercorn.trio.run.TCPServer`."""

    def __init__(  # noqa: PLR0917 - hypercorn calls it by position
        self,
        options: ServerOptions,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: LifespanState,
        stream: "trio.SocketStream | trio.SSLStream[trio.SocketStream]",
    ) -> None:
        super().__init__(app, config, context, state, cast("trio.SSLStream[trio.SocketStream]", stream))
        self._options = options
        self._writes: set[trio.CancelScope] = set()
        transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        self._socket: trio.socket.SocketType = transport.socket
        self._peer_is_gone = False
        self._is_lingering = False
        self._reading = trio.CancelScope()
        set_tcp_options(self._socket, options)

    async def run(self) -> None:
        try:
            await super().run()
        except Exception:  # noqa: BLE001 - logged with its traceback; only this connection may end by it
            await self.config.log.exception("connection ended by an unexpected error")

    async def protocol_send(self, event: Event) -> None:
        match event:
            case RawData():
                if not await self._write(event.data):
                    await self._tell_of_end()
            case Closed() if not self._peer_is_gone:
                await self._linger()
                await self._tell_of_end()
            case Updated() if self._peer_is_gone or self._is_lingering:
                # Nothing is to be waited for in idleness.
                return
            case _:
                await super().protocol_send(event)

    async def _tell_of_end(self) -> None:
        # Not cut in the middle: an exchange that is marked as closed, and did not hear of it, never does.
        with trio.move_on_after(_CLOSE_GRACE_S, shield=True):
            await self.protocol.handle(Closed())

    async def _linger(self) -> None:
        """Says that nothing more comes, and leaves the end to the reader, which also cuts a write that keeps us waiting."""
        self._is_lingering = True
        self._reading.deadline = trio.current_time() + _LINGER_S
        if isinstance(self.stream, trio.SocketStream):
            # Not in the middle of what another HTTP/2 stream writes: the end would be lost, or the write fail.
            async with self.send_lock:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self.stream.send_eof()

    async def _write(self, data: bytes) -> bool:
        """Writes all of `data`, or closes the connection. Shielded, since half a write spoils it for every other stream."""
        with self._cancellable_write() as scope:
            try:
                async with self.send_lock:
                    await self.stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return False
            return True
        if trio.current_time() >= scope.deadline:
            self._note_slow_reader()
        await trio.aclose_forcefully(self.stream)
        return False

    @contextmanager
    def _cancellable_write(self) -> Iterator[trio.CancelScope]:
        with trio.move_on_after(self._options.write_timeout_s, shield=True) as scope:
            self._writes.add(scope)
            try:
                yield scope
            finally:
                self._writes.discard(scope)

    def _note_slow_reader(self) -> None:
        protocol = self.protocol.protocol
        streams = protocol.streams.values() if isinstance(protocol, H2Protocol) else [protocol.stream]
        for stream in streams:
            if stream is not None:
                stream.scope["state"][SLOW_READER] = True

    async def _read_data(self) -> None:
        try:
            with self._reading:
                while data := await self._receive():
                    if not self._is_lingering:
                        await self._handle_watched(bytes(data))
        finally:
            # The peer is gone or the grace of a shutdown is over: no write is worth waiting for.
            self._peer_is_gone = True
            for write in self._writes:
                write.cancel()
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def _receive(self) -> bytes | bytearray:
        try:
            return await self.stream.receive_some(MAX_RECV)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return b""

    async def _handle_watched(self, data: bytes) -> None:
        """Hands `data` to the protocol, which may park us there, and leaves when the peer does."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_peer_left, nursery.cancel_scope)
            await self.protocol.handle(RawData(data))
            nursery.cancel_scope.cancel()

    async def _cancel_when_peer_left(self, scope: trio.CancelScope) -> None:
        while True:
            # Only the kernel knows, and has no event for it. The wait comes first: what is handled at once is not to be cut.
            await trio.sleep(self._options.fin_poll_interval_s)
            if peer_has_left(self._socket):
                scope.cancel()


def set_tcp_options(sock: trio.socket.SocketType, options: ServerOptions) -> None:
    """Has the kernel find peers that vanished without a word; nothing for a Unix socket. Trio has it send at once already."""
    if sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, options.tcp_keepalive_idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, options.tcp_keepalive_interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, options.tcp_keepalive_probes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, options.tcp_user_timeout_ms)


def peer_has_left(sock: trio.socket.SocketType) -> bool:
    """Whether the connection is no longer established, unread bytes or not; False for a Unix socket, which cannot tell."""
    if sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return False
    if sock.fileno() < 0:
        return True
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_STATE_BYTES)[0] != _TCP_ESTABLISHED
