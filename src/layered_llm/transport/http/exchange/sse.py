"""Server-sent events as bytes.

Must not know: what an event says.

Source: WHATWG HTML, "Server-sent events". JSON has no raw line break, so one `data:` line holds any of it. Clients that split
by `str.splitlines` see more characters as line breaks: those that JSON does not escape anyway are escaped here.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self

import attrs

HEARTBEAT: Final = b": ping\n\n"
"""A comment: keeps middleboxes from closing a silent connection, and is no event."""
DONE: Final = b"data: [DONE]\n\n"

HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}

_PIECE_ITEMS: Final = 64
"""Some 2 ms of encoding, where each is a token with 20 others beside it."""

_MOST_PLAIN_ITEMS: Final = 4096
"""Of numbers and the like."""

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))

_LINE_BREAKS: Final = tuple((char, f"\\u{ord(char):04x}") for char in "\x85\u2028\u2029")


def to_json(value: object) -> bytes:
    """Compact UTF-8 JSON in one line. Raises ValueError for NaN and the infinities, which JSON does not have."""
    text = _ENCODER.encode(value)
    if not text.isascii():
        for char, escaped in _LINE_BREAKS:
            if char in text:  # in a string, nowhere else
                text = text.replace(char, escaped)
    return text.encode()


def to_json_in_pieces(value: object) -> bytes:
    """The same, for a thread that is to let others in between: the encoder itself does not."""
    match value:
        case dict():
            return b"{" + b",".join(to_json(name) + b":" + to_json_in_pieces(item) for name, item in value.items()) + b"}"
        case list() if len(value) <= _PIECE_ITEMS:
            return b"[" + b",".join(map(to_json_in_pieces, value)) + b"]"
        case list():
            places = range(0, len(value), _PIECE_ITEMS)
            return b"[" + b",".join(to_json(value[place : place + _PIECE_ITEMS])[1:-1] for place in places) + b"]"
        case _:
            return to_json(value)


@attrs.frozen
class Written:
    """A member of a value that is encoded piece by piece, when it is reached; an empty piece is a place to pause."""

    pieces: Callable[[], Iterator[bytes]]


def json_pieces(value: object) -> Iterator[bytes]:
    """Compact UTF-8 JSON of a value that may hold `Written` ones, each piece some 2 ms of work at most."""
    match value:
        case Written():
            yield from value.pieces()
        case dict():
            yield b"{"
            for place, (name, item) in enumerate(value.items()):
                yield (b"," if place else b"") + to_json(name) + b":"
                yield from json_pieces(item)
            yield b"}"
        case list() if any(isinstance(item, dict | Written) for item in value[:1]):
            yield b"["
            for place, item in enumerate(value):
                if place:
                    yield b","
                yield from json_pieces(item)
            yield b"]"
        case list() if len(value) > _MOST_PLAIN_ITEMS:
            yield b"["
            for place in range(0, len(value), _MOST_PLAIN_ITEMS):
                yield (b"," if place else b"") + to_json(value[place : place + _MOST_PLAIN_ITEMS])[1:-1]
            yield b"]"
        case _:
            yield to_json(value)


def event(value: object) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"


def framed(encoded: bytes) -> bytes:
    """The event of a value that is JSON already."""
    return b"data: " + encoded + b"\n\n"


@attrs.frozen
class TextEvent:
    """An event that is the same each time but for one string: a copy costs a quarter of encoding it anew."""

    _before: bytes
    _after: bytes

    @classmethod
    def of(cls, worded: Callable[[str], Mapping[str, Any]]) -> Self:
        """`worded` gives the event's value for a text, which stands in it once, as it is."""
        one, other = event(worded("0")), event(worded("1"))
        # They differ in one byte, whose place is that of the highest bit that differs.
        place = len(one) - (int.from_bytes(one) ^ int.from_bytes(other)).bit_length() // 8 - 1
        return cls(one[: place - 1], one[place + 2 :])

    def with_text(self, text: str) -> bytes:
        return self._before + to_json(text) + self._after
