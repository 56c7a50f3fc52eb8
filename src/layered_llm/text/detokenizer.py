"""Token ids in, text out, token by token, exactly.

Must not know: requests, stop strings, how tables are made.

Invariant: the pushed texts and the final flush concatenate to what the tokenizer's own decode
gives for all ids at once. Text is held only while later tokens can still change it: an incomplete UTF-8 character of a
byte-level tokenizer, or a run of byte-fallback tokens, whose bytes decode together or each to U+FFFD.
"""

import codecs
from typing import Final, Protocol

import attrs

from layered_llm.text.decode_tables import ByteTable, PieceTable, strip_leading

_Utf8Decoder: Final = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """The state of one choice."""

    def push(self, token: int) -> str:
        """The text that is certain once this token follows those before."""

    def finish(self) -> str:
        """The text still held, when nothing follows. Call it once, last."""


class ByteLevelDetokenizer:
    """Byte-level BPE: the incremental UTF-8 decoder of the standard library over the tokens' bytes.

    With `replace` it puts one U+FFFD for each maximal invalid subpart (Unicode 15, section 3.9), as the library does.
    """

    __slots__ = ("_decoder", "_piece")

    def __init__(self, table: ByteTable) -> None:
        self._piece = table.shown.get
        self._decoder = _Utf8Decoder("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._piece(token, b""))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


@attrs.define
class PieceDetokenizer:
    """SentencePiece style: pieces pass at once, byte runs when they have ended."""

    _table: PieceTable
    _is_first: bool = attrs.field(init=False, default=True)
    _run: bytearray = attrs.field(init=False, factory=bytearray)
    _strip: list[tuple[str, int]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._strip = list(self._table.strip)

    def push(self, token: int) -> str:
        piece = (self._table.first if self._is_first else self._table.shown).get(token)
        if piece is None:
            return ""
        self._is_first = False
        if isinstance(piece, int):
            self._run.append(piece)
            return ""
        return self._stripped(self._end_run() + piece if self._run else piece)

    def finish(self) -> str:
        return self._stripped(self._end_run())

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            tokens = [run.decode()]
        except UnicodeDecodeError:
            tokens = ["\ufffd"] * len(run)
        for stage in self._table.after_run:
            tokens = [stage(token) for token in tokens]
        return "".join(tokens)

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            char, most = self._strip[0]
            rest = strip_leading(text, char, most)
            if rest or len(text) == most:
                self._strip.pop(0)
            else:
                self._strip[0] = (char, most - len(text))
            text = rest
        return text
