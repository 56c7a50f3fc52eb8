"""HTTP/2 streams that hold no more than they should: hypercorn 0.18's buffer and protocol, mended.

Must not know: the application.

Faults of upstream:
* `StreamBuffer.pop` wakes the writer by what it took, and not by what remains: with the peer's window at 0 it takes nothing,
  always wakes, and the buffer grows without bound.
* DATA behind a response that did not wait for it raises KeyError.
* A peer that never opens its window holds the handler for ever, in `push` and in `drain`.
* A stream is forgotten before its exchange is told of the disconnect. A reader that is cancelled in between, as it is when its
  peer has left, leaves an exchange that never learns of it.
"""

import contextlib
from typing import Final

import h2.errors
import h2.events
import h2.exceptions
import trio
from hypercorn.protocol.events import Event, StreamClosed
from hypercorn.protocol.h2 import BUFFER_LOW_WATER, H2Protocol, StreamBuffer

from layered_llm.transport.http.hypercorn_workarounds.options import ServerOptions

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


def bounded_h2_protocol(options: ServerOptions) -> type[H2Protocol]:
    """The class that stands in for `hypercorn.protocol.H2Protocol`, which takes no options."""

    class BoundedH2Protocol(H2Protocol):
        """Resets a stream whose peer takes nothing for the write timeout."""

        async def _handle_events(self, events: list[h2.events.Event]) -> None:
            for event in events:
                if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                    self._discard(event)
                else:
                    await super()._handle_events([event])

        def _discard(self, event: h2.events.DataReceived) -> None:
            # The bytes count against the connection's window, which the other streams need.
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self.connection.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)

        async def stream_send(self, event: Event) -> None:
            if isinstance(event, StreamClosed):
                await super().stream_send(event)
                return
            with trio.move_on_after(options.write_timeout_s) as scope:
                await super().stream_send(event)
            if scope.cancelled_caught:
                await self._reset(event.stream_id)

        async def _close_stream(self, stream_id: int) -> None:
            with trio.move_on_after(_TELL_S, shield=True):
                await super()._close_stream(stream_id)

        async def _reset(self, stream_id: int) -> None:
            # Where the stream or the connection ended meanwhile, nothing is left to do.
            with contextlib.suppress(h2.exceptions.ProtocolError):
                self.connection.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
            await self._flush()
            await self._close_stream(stream_id)

    return BoundedH2Protocol
