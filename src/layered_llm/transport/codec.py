"""Messages to frames and back: the only module that imports msgspec.

Must not know: what a message means, sockets.

A message is two frames: a tag of one byte, and its fields in MessagePack. Each direction of each link has a closed table of
tags, so that a peer can neither name a class nor send a message that does not belong on its link. Whatever bytes come in, the
result is a valid message or a WireError.

Costs on two cores of a small machine are measured by `benchmarks/links.py`: about 2 µs each way for the messages of one step.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Generic, TypeVar

import attrs
import msgspec

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.messages import api_text, scheduler_runtime, supervision, text_scheduler

OutT = TypeVar("OutT")
InT = TypeVar("InT")
MessageT_co = TypeVar("MessageT_co", covariant=True)

MAX_BODY_BYTES: Final = 64 << 20
_SHOWN_CHARS: Final = 200


class WireError(Exception):
    """The peer sent something that is no message of this link."""


@attrs.frozen
class TagTable(Generic[MessageT_co]):
    """The messages of one direction of one link, by their tags. A tag is never given to another class."""

    classes: Mapping[bytes, type[MessageT_co]]


API_TO_TEXT: Final = TagTable[api_text.ApiToText](
    {
        b"S": api_text.Submit,
        b"A": api_text.Abort,
        b"T": api_text.Tokenize,
        b"D": api_text.Detokenize,
        b"I": api_text.DescribeTokenizer,
    }
)
TEXT_TO_API: Final = TagTable[api_text.TextToApi](
    {
        b"a": api_text.Accepted,
        b"r": api_text.Rejected,
        b"t": api_text.TextEmitted,
        b"k": api_text.Tokenized,
        b"d": api_text.Detokenized,
        b"i": api_text.TokenizerDescribed,
    }
)
TEXT_TO_SCHEDULER: Final = TagTable[text_scheduler.TextToScheduler](
    {
        b"A": text_scheduler.Admit,
        b"X": text_scheduler.AbortRequest,
        b"S": text_scheduler.StopChoice,
        b"C": text_scheduler.StepsTaken,
    }
)
SCHEDULER_TO_TEXT: Final = TagTable[text_scheduler.SchedulerToText](
    {
        b"q": text_scheduler.Queued,
        b"r": text_scheduler.Refused,
        b"t": text_scheduler.TokensEmitted,
        b"f": text_scheduler.RequestsFinished,
    }
)
SCHEDULER_TO_RUNTIME: Final = TagTable[scheduler_runtime.SchedulerToRuntime](
    {
        b"E": scheduler_runtime.ExecuteStep,
    }
)
RUNTIME_TO_SCHEDULER: Final = TagTable[scheduler_runtime.RuntimeToScheduler](
    {
        b"w": scheduler_runtime.RuntimeWarmingUp,
        b"r": scheduler_runtime.RuntimeReady,
        b"c": scheduler_runtime.StepCompleted,
        b"f": scheduler_runtime.StepFailed,
    }
)
API_TO_SUPERVISOR: Final = TagTable[supervision.ApiToSupervisor](
    {
        b"H": supervision.ApiHello,
        b"G": supervision.ApiGoodbye,
        b"Q": supervision.StateQuery,
        b"R": supervision.StateReport,
        b"N": supervision.AbortByName,
        b"D": supervision.RequestsAborted,
        b"F": supervision.FindRequest,
        b"W": supervision.RequestFound,
    }
)
SUPERVISOR_TO_API: Final = TagTable[supervision.SupervisorToApi](
    {
        b"s": supervision.EngineStatus,
        b"b": supervision.Heartbeat,
        b"q": supervision.StateQuery,
        b"e": supervision.EngineState,
        b"n": supervision.AbortByName,
        b"d": supervision.RequestsAborted,
        b"f": supervision.FindRequest,
        b"w": supervision.RequestFound,
        b"x": supervision.Stop,
    }
)
ENGINE_TO_SUPERVISOR: Final = TagTable[supervision.EngineToSupervisor](
    {
        b"P": supervision.ProcessReady,
        b"B": supervision.Heartbeat,
        b"R": supervision.StateReport,
    }
)
SUPERVISOR_TO_ENGINE: Final = TagTable[supervision.SupervisorToEngine](
    {
        b"z": supervision.EngineSized,
        b"d": supervision.ApiDied,
        b"q": supervision.StateQuery,
        b"x": supervision.Stop,
    }
)


class Codec(Generic[OutT, InT]):
    """One end of a link: encodes what goes out, decodes what comes in."""

    def __init__(self, *, outbound: TagTable[OutT], inbound: TagTable[InT], max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._tags = {message_class: tag for tag, message_class in outbound.classes.items()}
        self._decoders = {tag: msgspec.msgpack.Decoder(message_class) for tag, message_class in inbound.classes.items()}
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
