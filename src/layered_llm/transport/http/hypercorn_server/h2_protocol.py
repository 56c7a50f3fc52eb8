"""HTTP/2 streams that hold no more than they should: hypercorn 0.18's buffer and protocol, mended.

Must not know: the application.

Faults of upstream:
* `StreamBuffer.pop` wakes the writer by what it took, and not by what remains: with the peer's window at 0 it takes nothing,
  always wakes, and the buffer grows without bound.
* A frame that is longer than allowed is refused when all of it has come: 16 MB of a connection that has asked nothing yet.
* All frames of a read, up to 7,000 of them, are worked off without a checkpoint: some connections of such hold everybody up for
  seconds.
* DATA behind a response that did not wait for it raises KeyError.
* A request whose path or method is no ASCII, or that has no path, is an exception, which ends the whole connection, and with it
  what others ask over it through a proxy.
* A connection that begins with HTTP/2's preface and asks nothing is never closed.
* A peer that never opens its window holds the handler for ever, in `push` and in `drain`.
* A stream is forgotten before its exchange is told of the disconnect. A reader that is cancelled in between, as it is when its
  peer has left, leaves an exchange that never learns of it.
"""

import contextlib
from typing import Any, Final

import h2.errors
import h2.events
import h2.exceptions
import trio
from h2.frame_buffer import FrameBuffer
from hypercorn.events import Event as HypercornEvent
from hypercorn.events import RawData, Updated
from hypercorn.protocol.events import Event, StreamClosed
from hypercorn.protocol.h2 import BUFFER_LOW_WATER, H2Protocol, StreamBuffer
from hyperframe.frame import Frame

from layered_llm.transport.http.hypercorn_server.options import SLOW_READER, ServerOptions

_LENGTH_BYTES: Final = 3
_HEADER_BYTES: Final = 9
_PIECE_BYTES: Final = 2048
"""Of what was read: at most some 200 frames, of 30 µs each."""
_TELL_S: Final = 1.0
"""How long an exchange may take to hear of a disconnect; it takes none, unless it has stopped listening."""


class BoundedStreamBuffer(StreamBuffer):
    """Stands in for `hypercorn.protocol.h2.StreamBuffer`."""

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


class PromptFrameBuffer(FrameBuffer):
    """Stands in for h2's own: judges a frame's length by its header."""

    def __next__(self) -> Frame:
        if len(self._data) >= _HEADER_BYTES:
            self._validate_frame_length(int.from_bytes(self._data[:_LENGTH_BYTES], "big"))
        return super().__next__()


class BoundedH2Protocol(H2Protocol):
    """Stands in for `hypercorn.protocol.H2Protocol`, which takes no options.

    Resets a stream whose peer takes nothing for the write timeout.
    """

    def __init__(self, options: ServerOptions, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._write_timeout_s = options.write_timeout_s
        frames = PromptFrameBuffer(server=True)
        frames.max_frame_size = self.connection.max_inbound_frame_size
        self.connection.incoming_buffer = frames

    async def initiate(self, *arguments: Any) -> None:
        await super().initiate(*arguments)
        if not self.streams:
            await self.send(Updated(idle=True))

    async def handle(self, event: HypercornEvent) -> None:
        if not isinstance(event, RawData):
            await super().handle(event)
            return
        for begin in range(0, len(event.data), _PIECE_BYTES):
            if not self.closed:
                await super().handle(RawData(event.data[begin : begin + _PIECE_BYTES]))
                await trio.lowlevel.checkpoint()

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.RequestReceived) and not _is_answerable(event):
                self.connection.reset_stream(event.stream_id or 0, h2.errors.ErrorCodes.PROTOCOL_ERROR)
            elif isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                self._discard(event)
            else:
                await super()._handle_events([event])
        # What is answered without an event, such as DATA on a closed stream by a reset, is not to wait for the next one.
        await self._flush()

    def _discard(self, event: h2.events.DataReceived) -> None:
        # The bytes count against the connection's window, which the other streams need.
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.connection.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)

    async def stream_send(self, event: Event) -> None:
        if isinstance(event, StreamClosed):
            await super().stream_send(event)
            return
        with trio.move_on_after(self._write_timeout_s) as scope:
            await super().stream_send(event)
        if scope.cancelled_caught:
            await self._reset(event.stream_id)

    async def _close_stream(self, stream_id: int) -> None:
        with trio.move_on_after(_TELL_S, shield=True):
            await super()._close_stream(stream_id)

    async def _reset(self, stream_id: int) -> None:
        if stream_id in self.streams:
            self.streams[stream_id].scope["state"][SLOW_READER] = True
        # Where the stream or the connection ended meanwhile, nothing is left to do.
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.connection.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
        await self._flush()
        await self._close_stream(stream_id)


def _is_answerable(request: h2.events.RequestReceived) -> bool:
    fields = dict(request.headers)
    return b":path" in fields and (fields[b":method"] + fields[b":path"]).isascii()
