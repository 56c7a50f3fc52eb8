"""ZMQ sockets under trio and in plain threads: the only module that imports zmq.

Must not know: what the frames say, which process it serves.

Invariants, each of them forced by ZMQ_FD, which is edge-triggered and shared by both directions:
* EVENTS is read immediately before a task parks: reading it drains the socket's mailbox and so re-arms the descriptor.
* Any reading of EVENTS and any operation may eat the edge that the other direction waits for: the other one is woken.
* Nothing can be cancelled between a successful operation and its return: no message is lost or sent twice.
* A ROUTER never waits, since its readiness says nothing about one peer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final, Self, TypeVar

import attrs
import trio
import zmq

from layered_llm.domain.errors import InvariantViolated
from layered_llm.transport.addresses import AddressError, checked_address, ipc_path
from layered_llm.transport.edge import EdgeWaiter
from layered_llm.transport.ports import LinkClosed, SendOutcome

Frames = tuple[bytes, ...]
T = TypeVar("T")
SocketT = TypeVar("SocketT", bound="_TrioSocket")

# Plain ints: arithmetic on enum members costs more than the system call behind it.
_READABLE: Final = int(zmq.POLLIN)
_WRITABLE: Final = int(zmq.POLLOUT)
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.SNDMORE)
_RECONNECT_MS: Final = 10
_RECONNECT_MAX_MS: Final = 50


BYTES_PER_RECEIVE: Final = 32 << 10
"""A receiver works off at most so much, and the message that completes it, before other tasks get their turn: some 2 ms where
these are log probabilities."""


@attrs.frozen(kw_only=True)
class SocketOptions:
    """Bounds of one socket."""

    high_water_mark: int = 1000
    """Messages queued for one peer, on each side of the link. Not a tight bound: flow control is the application's."""
    max_frame_bytes: int = 64 << 20
    """A peer that sends a longer frame is disconnected."""
    max_frames: int = 4
    """Frames of one message beyond one more than this are dropped, so that the receiver can tell and reject it."""


class _TrioSocket:
    """What the two kinds of trio sockets share; owns the ZMQ socket."""

    def __init__(self, socket: zmq.Socket[bytes], *, max_frames: int) -> None:
        """Takes a socket with all options set and its address bound or connected: later changes would eat edges."""
        self._socket = socket
        self._max_frames = max_frames
        descriptor = int(socket.getsockopt(zmq.FD))
        self._incoming = EdgeWaiter(descriptor)
        self._outgoing = EdgeWaiter(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._socket.closed

    async def recv(self) -> Frames:
        """Waits for one message. Raises ClosedResourceError, and BusyResourceError when another task receives."""
        return (await self.recv_many(1))[0]

    async def recv_many(self, limit: int) -> tuple[Frames, ...]:
        """Waits for at least one message and returns up to `limit` that are there; no more behind BYTES_PER_RECEIVE.

        Raises as `recv`.
        """
        return await self._perform(self._incoming, _READABLE, lambda: self._take_many(limit))

    def close(self, linger_ms: int = 0) -> None:
        """Ends waiting tasks with ClosedResourceError; what was sent has `linger_ms` to leave. Harmless when repeated."""
        self._incoming.close()
        self._outgoing.close()
        self._socket.close(linger=linger_ms)

    async def _perform(self, waiter: EdgeWaiter, flag: int, operation: Callable[[], T]) -> T:
        """Repeats `operation` until its result is true; false says that it could not be done now and changed nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with waiter:
            waited = False
            while True:
                try:
                    ready = self._readiness() & flag
                    if ready and (result := self._attempt(operation)):
                        break
                except trio.ClosedResourceError:
                    # Whoever cancelled this task may have closed the socket as well: it was cancelled, nothing failed.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    raise
                waited = True
                if (
                    ready
                ):  # and yet not done: the peer left in between, and the edge may be gone, so look again instead of parking
                    await trio.lowlevel.checkpoint()
                else:
                    await waiter.park()
        if not waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return result

    def _attempt(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except zmq.ContextTerminated:
            raise trio.ClosedResourceError from None
        finally:
            self._readiness()

    def _readiness(self) -> int:
        """The directions in which something can be done now; wakes the tasks that wait for them."""
        if self._socket.closed:
            raise trio.ClosedResourceError
        try:
            events = int(self._socket.getsockopt(zmq.EVENTS))
        except zmq.ContextTerminated:
            raise trio.ClosedResourceError from None
        if events & _READABLE:
            self._incoming.wake()
        if events & _WRITABLE:
            self._outgoing.wake()
        return events

    def _take_many(self, limit: int) -> tuple[Frames, ...]:
        messages, size = list[Frames](), 0
        try:
            while len(messages) < limit and size < BYTES_PER_RECEIVE:
                messages.append(_take(self._socket, _NOBLOCK, self._max_frames))
                size += sum(map(len, messages[-1]))
        except zmq.Again:
            pass
        return tuple(messages)


class MessageSocket(_TrioSocket):
    """A socket with one peer (DEALER, PAIR), for one sending and one receiving task."""

    async def send(self, frames: Sequence[bytes]) -> None:
        """Waits until the socket takes the message; when cancelled, it did not.

        Raises ClosedResourceError, and BusyResourceError when another task sends.
        """
        await self._perform(self._outgoing, _WRITABLE, lambda: self._put(frames))

    def _put(self, frames: Sequence[bytes]) -> bool:
        try:
            _put(self._socket, frames, _NOBLOCK)
        except zmq.Again:
            return False
        return True


class RouterSocket(_TrioSocket):
    """A socket with many peers; the first frame of every message is the identity of the peer that it comes from or goes to.

    A name belongs to the first connection that took it, until that one is gone: a later one of the same name is not heard.
    """

    def send_nowait(self, frames: Sequence[bytes]) -> SendOutcome:
        """Raises ClosedResourceError."""
        # A send alone looks into its mailbox only every few milliseconds, and would say FULL of a peer that has caught up.
        self._readiness()
        return self._attempt(lambda: self._put(frames))

    def _put(self, frames: Sequence[bytes]) -> SendOutcome:
        try:
            _put(self._socket, frames, _NOBLOCK)
        except zmq.Again:
            return SendOutcome.FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return SendOutcome.UNREACHABLE
        return SendOutcome.SENT


class BlockingSocket:
    """A socket with one peer (DEALER) for one thread without an event loop."""

    def __init__(self, socket: zmq.Socket[bytes], *, max_frames: int, on_close: Callable[["BlockingSocket"], None]) -> None:
        self._socket = socket
        self._max_frames = max_frames
        self._on_close = on_close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def recv(self) -> Frames:
        """Blocks for one message. Raises LinkClosed when the context is shut down."""
        self._check_open()
        try:
            return _take(self._socket, 0, self._max_frames)
        except zmq.ContextTerminated:
            raise LinkClosed from None

    def comes_before(self, descriptor: int) -> bool:
        """Blocks until there is a message or `descriptor` can be read from; whether there is a message. Raises LinkClosed."""
        self._check_open()
        try:
            zmq.zmq_poll([(self._socket, _READABLE), (descriptor, _READABLE)])
            return bool(int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE)
        except zmq.ContextTerminated:
            raise LinkClosed from None

    def send(self, frames: Sequence[bytes]) -> None:
        """Blocks until the socket takes the message. Raises LinkClosed when the context is shut down."""
        self._check_open()
        try:
            _put(self._socket, frames, 0)
        except zmq.ContextTerminated:
            raise LinkClosed from None

    def close(self, linger_ms: int = 0) -> None:
        """To be called by the thread that uses the socket; what was sent has `linger_ms` to leave."""
        self._socket.close(linger=linger_ms)
        self._on_close(self)

    def _check_open(self) -> None:
        if self._socket.closed:
            raise LinkClosed


class MessageContext:
    """Makes sockets, and lets those of one process reach each other by inproc:// names. Made by `open_context`."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._trio_sockets: list[_TrioSocket] = []
        self._blocking_sockets: set[BlockingSocket] = set()
        self._is_over = Event()
        # Terminating is what wakes blocked threads, but it returns only when all of them have closed their sockets. The thread
        # that does it stands ready: an interpreter that is about to end starts none any more, and waits for those that block.
        self._terminating = Thread(target=self._terminate, name="zmq-context-term", daemon=True)
        self._terminating.start()

    def bind_router(self, address: str, options: SocketOptions) -> RouterSocket:
        """Raises AddressError, and LinkClosed after a shutdown; so do all that make sockets."""
        _check_free(address)
        socket = self._socket(zmq.ROUTER, options)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        _attach(socket, socket.bind, address)
        return self._keep(RouterSocket(socket, max_frames=options.max_frames))

    def bind_dealer(self, address: str, options: SocketOptions) -> MessageSocket:
        """For a link with exactly one peer."""
        _check_free(address)
        socket = self._socket(zmq.DEALER, options)
        _attach(socket, socket.bind, address)
        return self._keep(MessageSocket(socket, max_frames=options.max_frames))

    def connect_dealer(self, address: str, identity: bytes, options: SocketOptions) -> MessageSocket:
        """The peer may bind later: sends wait for it."""
        socket = self._connected(address, identity, options)
        return self._keep(MessageSocket(socket, max_frames=options.max_frames))

    def connect_blocking(self, address: str, identity: bytes, options: SocketOptions) -> BlockingSocket:
        """As `connect_dealer`, for the calling thread, whichever that is."""
        socket = self._connected(address, identity, options)
        blocking = BlockingSocket(socket, max_frames=options.max_frames, on_close=self._blocking_sockets.discard)
        self._blocking_sockets.add(blocking)
        return blocking

    def shutdown(self) -> None:
        """Ends every operation on every socket of this context with its "closed" exception; returns at once.

        The one way to end a thread that blocks on a socket. To be called by the thread that opened the context.
        """
        self._is_over.set()

    def close(self) -> None:
        """Closes the trio sockets, and waits until the lingering of all closed sockets is over.

        Raises InvariantViolated when a thread still has a blocking socket, since waiting for that could be for ever:
        call `shutdown` and wait for the thread first.
        """
        for socket in self._trio_sockets:
            socket.close()
        open_in_threads = len(self._blocking_sockets)
        self._is_over.set()
        if open_in_threads:
            raise InvariantViolated(f"context closed while threads have {open_in_threads} blocking sockets open")
        self._terminating.join()

    def _terminate(self) -> None:
        self._is_over.wait()
        self._context.term()

    def _socket(self, kind: int, options: SocketOptions) -> "zmq.Socket[bytes]":
        if self._is_over.is_set():
            raise LinkClosed
        try:
            socket = self._context.socket(kind)
        except zmq.ZMQError:
            if not self._is_over.is_set():
                raise
            raise LinkClosed from None  # shut down since the look above, by the thread that opened the context
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, options.max_frame_bytes)
        socket.setsockopt(zmq.SNDHWM, options.high_water_mark)
        socket.setsockopt(zmq.RCVHWM, options.high_water_mark)
        return socket

    def _connected(self, address: str, identity: bytes, options: SocketOptions) -> "zmq.Socket[bytes]":
        checked_address(address)
        socket = self._socket(zmq.DEALER, options)
        socket.setsockopt(zmq.IDENTITY, identity)
        # Without a connection messages stay with the sender, who knows of them, instead of going to whoever binds next.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        _attach(socket, socket.connect, address)
        return socket

    def _keep(self, socket: SocketT) -> SocketT:
        self._trio_sockets = [kept for kept in self._trio_sockets if not kept.closed]
        self._trio_sockets.append(socket)
        return socket


@contextmanager
def open_context() -> Iterator[MessageContext]:
    """One context for the life of a process or of an embedded engine. Leaving it closes its trio sockets; see `close`."""
    context = MessageContext()
    try:
        yield context
    finally:
        context.close()


def _check_free(address: str) -> None:
    # ZMQ itself would let a second bind silently take the path away from the first.
    path = ipc_path(checked_address(address))
    if path is not None and path.exists():
        raise AddressError(f"{address!r} is in use")


def _attach(socket: "zmq.Socket[bytes]", attach: Callable[[str], object], address: str) -> None:
    try:
        attach(address)
    except zmq.ContextTerminated:
        socket.close()
        raise LinkClosed from None
    except zmq.ZMQError as error:
        socket.close()
        raise AddressError(f"{address!r}: {error.strerror}") from error


def _take(socket: "zmq.Socket[bytes]", flags: int, max_frames: int) -> Frames:
    frames = [socket.recv(flags)]
    # A message arrives whole: only its first frame can be waited for.
    while socket.getsockopt(zmq.RCVMORE):
        frame = socket.recv(flags)
        if len(frames) <= max_frames:
            frames.append(frame)
    return tuple(frames)


def _put(socket: "zmq.Socket[bytes]", frames: Sequence[bytes], flags: int) -> None:
    *first, last = frames
    for frame in first:
        socket.send(frame, flags | _MORE)
    socket.send(last, flags)
