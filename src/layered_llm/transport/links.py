"""Typed links: a socket and a codec together, the only thing of this package that a process's shell needs besides addresses.

Must not know: what a message means, which process it serves.

A peer is known by a short name, which travels as the identity of its socket. What a garbled message does depends on who sent
it: a link with one peer or a group raises WireError, since these are our own and one of us is broken; a link with any peers
yields Garbled under the sender's name, so that one broken peer ends neither the process nor the others.
"""

import logging
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

import attrs
import trio

from layered_llm.transport.codec import Codec, WireError
from layered_llm.transport.link_specs import LinkSpec
from layered_llm.transport.ports import Garbled, SendOutcome
from layered_llm.transport.sparse_log import SparseLog
from layered_llm.transport.zmq_socket import BlockingSocket, Frames, MessageContext, MessageSocket, RouterSocket, SocketOptions

OutT = TypeVar("OutT")
InT = TypeVar("InT")
BoundT = TypeVar("BoundT")
ConnectedT = TypeVar("ConnectedT")

MESSAGES_PER_RECEIVE: Final = 256
"""A receiver works off at most so many messages before other tasks get their turn."""
_OPTIONS: Final = SocketOptions()
_RETRY_S: Final = 0.01
"""A socket with several peers does not say when one of them can be reached; this one always can, until it dies."""
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")

logger = logging.getLogger(__name__)


class _Closable(Protocol):
    def close(self, linger_ms: int = 0) -> None: ...


class _Closing:
    """Closes the socket when the link's `with` block is left."""

    def __init__(self, socket: _Closable) -> None:
        self._closable = socket

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self, linger_ms: int = 0) -> None:
        """What was sent has `linger_ms` to reach the peer; waiting tasks get ClosedResourceError. Harmless when repeated."""
        self._closable.close(linger_ms)


class DealerLink(_Closing, Generic[OutT, InT]):
    """A MessageLink: one peer, one sending and one receiving task."""

    def __init__(self, socket: MessageSocket, codec: Codec[OutT, InT]) -> None:
        super().__init__(socket)
        self._socket = socket
        self._codec = codec

    async def receive(self) -> tuple[InT, ...]:
        """Waits for at least one message and returns all that are there, in order. Raises WireError, ClosedResourceError."""
        return tuple(self._codec.decode(frames) for frames in await self._socket.recv_many(MESSAGES_PER_RECEIVE))

    async def send(self, message: OutT) -> None:
        """Waits until the link has taken the message; when cancelled, it has not. Raises ClosedResourceError."""
        await self._socket.send(self._codec.encode(message))


class RouterLink(_Closing, Generic[OutT, InT]):
    """A PeerLink: any number of named peers."""

    def __init__(self, socket: RouterSocket, codec: Codec[OutT, InT]) -> None:
        super().__init__(socket)
        self._socket = socket
        self._codec = codec

    async def receive(self) -> tuple[tuple[str, InT | Garbled], ...]:
        """Waits for at least one message and returns all that are there, in order, each with its peer's name.

        Raises ClosedResourceError. A peer without a proper name is called by its identity in hexadecimal and only garbles.
        """
        return tuple(self._decoded(frames) for frames in await self._socket.recv_many(MESSAGES_PER_RECEIVE))

    def send_nowait(self, peer: str, message: OutT) -> SendOutcome:
        """Raises ClosedResourceError, and ValueError when `peer` is no name."""
        return self._socket.send_nowait((identity_of(peer), *self._codec.encode(message)))

    def _decoded(self, frames: Frames) -> tuple[str, InT | Garbled]:
        identity, *message = frames
        peer = identity.decode("ascii", errors="replace")
        if not _NAME.fullmatch(peer):
            return identity.hex(), Garbled(reason="the peer has no proper name")
        try:
            return peer, self._codec.decode(message)
        except WireError as error:
            return peer, Garbled(reason=str(error))


class NamedPeersLink(_Closing, Generic[OutT, InT]):
    """A GroupLink. Whatever anybody else sends is dropped, and nothing goes to them."""

    def __init__(self, socket: RouterSocket, codec: Codec[OutT, InT], peers: Sequence[str]) -> None:
        super().__init__(socket)
        self._socket = socket
        self._codec = codec
        self._names = {identity_of(peer): peer for peer in peers}
        self._dropped = 0
        self._warnings = SparseLog()

    async def receive(self) -> tuple[tuple[str, InT], ...]:
        """Waits for at least one message and returns all that are there, in order. Raises WireError, ClosedResourceError."""
        while True:
            came = await self._socket.recv_many(MESSAGES_PER_RECEIVE)
            heard = tuple(
                (self._names[identity], self._codec.decode(message)) for identity, *message in came if identity in self._names
            )
            if len(heard) < len(came):
                self._note_strangers(len(came) - len(heard))
            if heard:
                return heard

    async def send(self, message: OutT) -> None:
        """Encodes the message once, and waits until the link has taken it for each peer. Raises ClosedResourceError."""
        await trio.lowlevel.checkpoint()
        frames = self._codec.encode(message)
        for identity in self._names:
            while self._socket.send_nowait((identity, *frames)) is not SendOutcome.SENT:  # noqa: ASYNC110 - see _RETRY_S
                await trio.sleep(_RETRY_S)

    def _note_strangers(self, dropped: int) -> None:
        self._dropped += dropped
        if self._warnings.is_due(trio.current_time()):
            names = ", ".join(self._names.values())
            logger.warning("others than %s sent what is dropped, %d messages by now", names, self._dropped)


class BlockingLink(_Closing, Generic[OutT, InT]):
    """A BlockingMessageLink: one peer, for one thread without an event loop."""

    def __init__(self, socket: BlockingSocket, codec: Codec[OutT, InT]) -> None:
        super().__init__(socket)
        self._socket = socket
        self._codec = codec

    def receive(self) -> InT:
        """Blocks for the next message. Raises WireError, and LinkClosed when the context was shut down."""
        return self._codec.decode(self._socket.recv())

    def comes_before(self, descriptor: int) -> bool:
        """Blocks until there is a message or `descriptor` can be read from; whether there is a message. Raises LinkClosed."""
        return self._socket.comes_before(descriptor)

    def send(self, message: OutT) -> None:
        """Blocks until the link has taken the message. Raises LinkClosed when the context was shut down."""
        self._socket.send(self._codec.encode(message))


def identity_of(name: str) -> bytes:
    """The socket identity of a peer's name, such as "api-3f2a" or "text-0".

    Raises ValueError unless it is 1 to 63 lower-case letters, digits and hyphens that start with a letter.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a peer")
    return name.encode("ascii")


@attrs.frozen
class ZmqLinks:
    """Implements `Links` over the sockets of a context. All of it raises AddressError, ValueError and LinkClosed."""

    _context: MessageContext
    _blocking_context: MessageContext
    """The same one, or one for groups and links that block alone, which can then be shut down to end a blocked thread."""

    def bind(self, spec: LinkSpec[BoundT, ConnectedT], address: str) -> RouterLink[BoundT, ConnectedT]:
        return RouterLink(self._context.bind_router(address, _OPTIONS), _bound_end(spec))

    def bind_group(
        self, spec: LinkSpec[BoundT, ConnectedT], address: str, peers: Sequence[str]
    ) -> NamedPeersLink[BoundT, ConnectedT]:
        """Sends wait until all of the peers have connected."""
        return NamedPeersLink(self._blocking_context.bind_router(address, _OPTIONS), _bound_end(spec), peers)

    def connect(self, spec: LinkSpec[BoundT, ConnectedT], address: str, name: str) -> DealerLink[ConnectedT, BoundT]:
        return DealerLink(self._context.connect_dealer(address, identity_of(name), _OPTIONS), _connected_end(spec))

    def connect_blocking(self, spec: LinkSpec[BoundT, ConnectedT], address: str, name: str) -> BlockingLink[ConnectedT, BoundT]:
        """As `connect`, to be called and used by the thread that blocks."""
        socket = self._blocking_context.connect_blocking(address, identity_of(name), _OPTIONS)
        return BlockingLink(socket, _connected_end(spec))


def _bound_end(spec: LinkSpec[BoundT, ConnectedT]) -> Codec[BoundT, ConnectedT]:
    return Codec(outbound=spec.from_bound, inbound=spec.from_connected)


def _connected_end(spec: LinkSpec[BoundT, ConnectedT]) -> Codec[ConnectedT, BoundT]:
    return Codec(outbound=spec.from_connected, inbound=spec.from_bound)
