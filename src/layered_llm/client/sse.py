"""Server-sent events from bytes, sans I/O.

Must not know: HTTP, what the data of an event means.

Follows WHATWG HTML, "Server-sent events", §9.2.5 (parsing an event stream) and §9.2.6 (interpreting an event stream), with two
choices of its own: an event is bounded in size, and `deliver_unfinished` can keep the last event of a stream that ends
without a blank line, which the standard drops and which some LLM servers send.

Invariant: the events, and the point at which `EventTooLarge` is raised, do not depend on how the bytes are split.
"""

import re
from typing import Final

import attrs

from layered_llm.client.errors import EventTooLarge

DEFAULT_MAX_EVENT_BYTES: Final = 16 << 20
"""Room for the prompt log-probabilities of a long context in one event."""

_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


@attrs.frozen(kw_only=True)
class ServerSentEvent:
    """One dispatched event."""

    data: str
    event: str = "message"
    last_event_id: str = ""
    """The last `id:` of the stream so far, in this event or an earlier one."""


@attrs.define
class _LineSplitter:
    """Cuts bytes into lines ended by CR, LF or CRLF, without a leading byte order mark.

    Bytes, not text: CR and LF never occur inside a multi-byte UTF-8 character, so a character may be split anywhere.
    """

    _partial: bytearray = attrs.field(init=False, factory=bytearray)
    _after_cr: bool = attrs.field(init=False, default=False)
    _at_start: bool = attrs.field(init=False, default=True)

    @property
    def pending_bytes(self) -> int:
        """Length of the line that has not ended yet."""
        return len(self._partial)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Lines that end in `chunk`, without their ends."""
        if self._after_cr and chunk:
            # The line was delivered at its CR: to wait for a possible LF would hold an event back until the next one.
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        first, *rest = _LINE_END.split(chunk)
        self._partial += first
        if not rest:
            return []
        lines = [self._take_partial(), *rest[:-1]]
        self._partial += rest[-1]
        return lines

    def close(self) -> list[bytes]:
        """The line that never ended, if there is one."""
        line = self._take_partial()
        return [line] if line else []

    def _take_partial(self) -> bytes:
        line = bytes(self._partial)
        self._partial.clear()
        if self._at_start:
            self._at_start = False
            return line.removeprefix(_BOM)
        return line


@attrs.define(kw_only=True)
class SseParser:
    """Turns the bytes of one stream into events, in order.

    Invalid UTF-8 becomes U+FFFD, as the standard's decoder does.
    """

    _deliver_unfinished: bool = True
    _max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES
    """Of all lines of one event, comments included and line ends not."""
    _lines: _LineSplitter = attrs.field(init=False, factory=_LineSplitter)
    _event_bytes: int = attrs.field(init=False, default=0)
    _data: list[str] = attrs.field(init=False, factory=list)
    _event_type: str = attrs.field(init=False, default="")
    _last_event_id: str = attrs.field(init=False, default="")
    _too_large: bool = attrs.field(init=False, default=False)
    _closed: bool = attrs.field(init=False, default=False)

    def feed(self, chunk: bytes) -> tuple[ServerSentEvent, ...]:
        """Events completed by `chunk`.

        Raises EventTooLarge when an event passes the limit; the events before it are returned first, and the next call raises.
        Raises ValueError after `close`.
        """
        if self._closed:
            raise ValueError("the parser is closed")
        self._raise_if_too_large()
        events = self._take_lines(self._lines.feed(chunk))
        if self._event_bytes + self._lines.pending_bytes > self._max_event_bytes:
            self._too_large = True
        if not events:
            self._raise_if_too_large()
        return events

    def close(self) -> tuple[ServerSentEvent, ...]:
        """The stream is over: its unfinished event, if there is one and it is wanted. Raises EventTooLarge as `feed` does."""
        self._closed = True
        self._raise_if_too_large()
        lines = self._lines.close()
        return self._take_lines([*lines, b""]) if self._deliver_unfinished else ()

    def _take_lines(self, lines: list[bytes]) -> tuple[ServerSentEvent, ...]:
        events: list[ServerSentEvent] = []
        for line in lines:
            self._event_bytes += len(line)
            if self._event_bytes > self._max_event_bytes:
                self._too_large = True
                break
            if line:
                self._take_field(line.decode(errors="replace"))
            else:
                events.extend(self._dispatch())
        return tuple(events)

    def _take_field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._event_type = value
            case "id" if "\0" not in value:
                self._last_event_id = value
            case _:
                pass  # comments (an empty name), unknown fields, and "retry": nobody connects again by himself

    def _dispatch(self) -> list[ServerSentEvent]:
        data, event_type = self._data, self._event_type or "message"
        self._data, self._event_type, self._event_bytes = [], "", 0
        return [ServerSentEvent(data="\n".join(data), event=event_type, last_event_id=self._last_event_id)] if data else []

    def _raise_if_too_large(self) -> None:
        if self._too_large:
            raise EventTooLarge(f"an event is larger than {self._max_event_bytes} bytes")
