"""What one completion stream means: bytes and waiting times go in, chunks and errors come out. Sans I/O.

Must not know: httpx, clocks, event loops.

Only waiting counts against a timeout, never the time that the caller takes between two chunks, so a slow consumer does not make
the server look silent. Keep-alive comments do not count as life: a server that pings and never answers is caught.
"""

import json
from collections import deque
from typing import Final

import attrs

from layered_llm.client.chunks import StreamChunk, read_chunk
from layered_llm.client.errors import (
    ApiError,
    FirstTokenTimeout,
    IdleTimeout,
    MalformedStream,
    StreamError,
    StreamTimeout,
    StreamTruncated,
    find_error,
)
from layered_llm.client.sse import ServerSentEvent, SseParser

_DONE: Final = "[DONE]"


@attrs.frozen(kw_only=True)
class StreamTimeouts:
    """How long a server may be silent; None is for ever. There is no limit on the whole stream: a long answer is no fault."""

    first_token_s: float | None = 600.0
    """From the request to the first output or finish reason: connecting, queueing and prefill."""
    idle_s: float | None = 120.0
    """Between two events after that."""


@attrs.define
class StreamCore:
    """One stream, from the request on.

    The shell asks `next_chunk` until it says None, stops if `is_over`, else waits for bytes no longer than `budget_s` and
    reports them with the time that it waited.
    """

    _timeouts: StreamTimeouts
    _parser: SseParser = attrs.field(init=False, factory=lambda: SseParser(deliver_unfinished=True))
    _events: deque[ServerSentEvent] = attrs.field(init=False, factory=deque)
    _waited_s: float = attrs.field(init=False, default=0.0)
    """Since the request, then since the last event."""
    _has_begun: bool = attrs.field(init=False, default=False)
    _has_ended: bool = attrs.field(init=False, default=False)
    """No more bytes will come."""
    _is_done: bool = attrs.field(init=False, default=False)

    @property
    def is_over(self) -> bool:
        """`[DONE]` was read: what follows it, if anything, is not for us."""
        return self._is_done

    @property
    def budget_s(self) -> float | None:
        """How much longer the server may be silent."""
        limit_s = self._timeouts.idle_s if self._has_begun else self._timeouts.first_token_s
        return None if limit_s is None else max(0.0, limit_s - self._waited_s)

    def waited(self, duration_s: float) -> None:
        """Time passed without an event, before the answer began."""
        self._waited_s += duration_s

    def receive(self, data: bytes, *, waited_s: float) -> None:
        """Bytes came after `waited_s` seconds of waiting. Raises EventTooLarge."""
        self._waited_s += waited_s
        events = self._parser.feed(data)
        self._events.extend(events)
        if events and self._has_begun:
            self._waited_s = 0.0

    def end(self) -> None:
        """The response body ended in order. Raises EventTooLarge."""
        self._has_ended = True
        self._events.extend(self._parser.close())

    def next_chunk(self) -> StreamChunk | None:
        """The next chunk that was received; None when there is none yet, or none any more (`is_over`).

        Raises StreamError for an error event, StreamTruncated at an end without `[DONE]`, MalformedStream for events that are
        not completion chunks, and StreamTimeout when the waiting time is used up.
        """
        if self._is_done:
            return None
        if not self._events:
            self._check_silence()
            return None
        event = self._events.popleft()
        if event.data == _DONE:
            self._is_done = True
            return None
        chunk = self._read(event)
        if not self._has_begun and (chunk.has_output or chunk.has_finish):
            self._has_begun = True
            self._waited_s = 0.0
        return chunk

    def timed_out(self) -> StreamTimeout:
        """The error for a wait that took the whole budget."""
        if self._has_begun:
            return IdleTimeout(f"no event within {self._timeouts.idle_s:g} s")
        return FirstTokenTimeout(f"no token within {self._timeouts.first_token_s:g} s")

    def _check_silence(self) -> None:
        if self._has_ended:
            raise StreamTruncated("the stream ended without [DONE]")
        if self.budget_s == 0.0:
            raise self.timed_out()

    def _read(self, event: ServerSentEvent) -> StreamChunk:
        try:
            value = json.loads(event.data)
        except (ValueError, RecursionError) as error:
            if self._has_ended and not self._events:
                raise StreamTruncated("the stream ended in the middle of a chunk") from error
            if event.event == "error":
                raise StreamError(ApiError(message=event.data)) from error
            raise MalformedStream(f"not JSON: {event.data[:200]}") from error
        failure = find_error(value)
        if failure is None and event.event == "error":
            failure = ApiError(message=event.data)
        if failure is not None:
            raise StreamError(failure)
        return read_chunk(value)
