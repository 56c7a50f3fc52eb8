"""What a link offers, whatever carries it: the values and protocols that shells and in-memory links share.

Must not know: ZMQ, bytes, what a message means.

A link is reliable and ordered while both ends live, and nothing is promised beyond that: who dies is learned from processes
and heartbeats, never from a link.
"""

import enum
from typing import Protocol, TypeVar

import attrs

OutT_contra = TypeVar("OutT_contra", contravariant=True)
InT_co = TypeVar("InT_co", covariant=True)


class LinkClosed(Exception):  # noqa: N818 - states what happened
    """A blocking link ended because its context was shut down, or was used after it was closed."""


@enum.unique
class SendOutcome(enum.Enum):
    """What became of a message to one of several peers."""

    SENT = "sent"
    FULL = "full"
    """The peer does not take what it was sent before; the message was not queued."""
    UNREACHABLE = "unreachable"
    """No peer of that name is connected; the message was not queued."""


@attrs.frozen(kw_only=True)
class Garbled:
    """Received in place of a message: the peer sent something that is none. Whoever sends that is not to be trusted further."""

    reason: str


class MessageSink(Protocol[OutT_contra]):
    """The sending side of a link with one peer."""

    async def send(self, message: OutT_contra) -> None:
        """Waits until the link has taken the message. When cancelled, the message was not taken."""


class MessageLink(MessageSink[OutT_contra], Protocol[OutT_contra, InT_co]):
    """A link with one peer, for one sending and one receiving task."""

    async def receive(self) -> tuple[InT_co, ...]:
        """Waits for at least one message and returns all that are there, in order. A cancelled call loses nothing."""


class PeerLink(Protocol[OutT_contra, InT_co]):
    """A link with any number of named peers, for one receiving task; sending never waits."""

    async def receive(self) -> tuple[tuple[str, InT_co | Garbled], ...]:
        """Waits for at least one message and returns all that are there, each with its peer's name."""

    def send_nowait(self, peer: str, message: OutT_contra) -> SendOutcome:
        """Hands the message to the link, or says at once why it cannot."""


class GroupLink(MessageSink[OutT_contra], Protocol[OutT_contra, InT_co]):
    """A link with a group of named peers, which all get each message, for one sending and one receiving task.

    A `send` that is cancelled may have reached some of them.
    """

    async def receive(self) -> tuple[tuple[str, InT_co], ...]:
        """Waits for at least one message and returns all that are there, each with its peer's name."""


class BlockingMessageLink(Protocol[OutT_contra, InT_co]):
    """A link with one peer for a thread without an event loop."""

    def receive(self) -> InT_co:
        """Blocks for the next message. Raises LinkClosed."""

    def comes_before(self, descriptor: int) -> bool:
        """Blocks until there is a message or `descriptor` can be read from; whether there is a message. Raises LinkClosed."""

    def send(self, message: OutT_contra) -> None:
        """Blocks until the link has taken the message. Raises LinkClosed."""
