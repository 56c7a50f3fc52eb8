"""Messages to frames and back: the only module that imports msgspec.

Must not know: what a message means, sockets.

A message is two frames: a tag of one byte, and its fields in MessagePack. Each direction of each link has a closed table of
tags (`LinkSpec`), so that a peer can neither name a class nor send a message that does not belong on its link. Whatever bytes
come in, the result is a valid message or a WireError.

Costs on two cores of a small machine are measured by `benchmarks/links.py`: about 2 µs each way for the messages of one step.
"""

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec

from layered_llm.domain.errors import InvariantViolated
from layered_llm.transport.link_specs import Tags

OutT = TypeVar("OutT")
InT = TypeVar("InT")

MAX_BODY_BYTES: Final = 64 << 20
_SHOWN_CHARS: Final = 200


class WireError(Exception):
    """The peer sent something that is no message of this link."""


class Codec(Generic[OutT, InT]):
    """One end of a link: encodes what goes out, decodes what comes in."""

    def __init__(self, *, outbound: Tags[OutT], inbound: Tags[InT], max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._tags = {message_class: tag for tag, message_class in outbound.items()}
        self._decoders = {tag: msgspec.msgpack.Decoder(message_class) for tag, message_class in inbound.items()}
        self._max_body_bytes = max_body_bytes

    def encode(self, message: OutT) -> tuple[bytes, bytes]:
        """Tag and body.

        Raises InvariantViolated for what no peer could decode: a message of another link, text that is no Unicode (lone
        surrogates), a number beyond 64 bits, or a body above the limit. Whoever takes such a value in must reject it there.
        """
        tag = self._tags.get(type(message))
        if tag is None:
            raise InvariantViolated(f"{type(message).__name__} is no message of this link")
        try:
            body = self._encoder.encode(message)
        except (UnicodeEncodeError, OverflowError) as error:
            raise InvariantViolated(f"{type(message).__name__} cannot be encoded: {error}") from error
        if len(body) > self._max_body_bytes:
            raise InvariantViolated(
                f"{type(message).__name__} has {len(body)} bytes, at most {self._max_body_bytes} can be sent"
            )
        return tag, body

    def decode(self, frames: Sequence[bytes]) -> InT:
        """Raises WireError, and nothing else, for whatever is not one valid message of this link."""
        if len(frames) != 2:
            raise WireError(f"{len(frames)} frames instead of 2")
        tag, body = frames
        if len(body) > self._max_body_bytes:
            raise WireError(f"a body of {len(body)} bytes, at most {self._max_body_bytes} are taken")
        decoder = self._decoders.get(tag)
        if decoder is None:
            raise WireError(f"unknown tag {tag[:8]!r}")
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:  # deep nesting, even in a field that is ignored, recurses
            raise WireError(f"tag {tag!r}: {str(error)[:_SHOWN_CHARS]}") from error
