"""Where the text of each token begins in the text of a choice, counted in characters.

Must not know: log probabilities, stop strings, messages.

A character that is spelled by several tokens counts with the one that completes it; a token that the text does not show lies
where the next one does.
"""

import codecs
from collections.abc import Sequence
from typing import Final

import attrs

from layered_llm.text.detokenizer import Detokenizer
from layered_llm.text.tokenizer import Tokenizer

_Utf8Decoder: Final = codecs.getincrementaldecoder("utf-8")


@attrs.define
class TextOffsets:
    """The offsets of one text, token by token."""

    _tokenizer: Tokenizer
    _skips_special: bool
    _chars: int = 0
    """Of the text so far; at first those before it."""
    _detokenizer: Detokenizer = attrs.field(init=False)
    _run: "codecs.IncrementalDecoder" = attrs.field(init=False)
    _run_chars: int = attrs.field(init=False, default=0)
    """Of a run of single bytes that has not ended."""

    def __attrs_post_init__(self) -> None:
        self._detokenizer = self._tokenizer.start_detokenizer(skip_special_tokens=self._skips_special)
        self._run = _Utf8Decoder("replace")

    @property
    def chars(self) -> int:
        return self._chars + self._run_chars

    def push(self, token: int) -> int:
        """The offset of the next token."""
        piece = self._tokenizer.shown(token, skip_special_tokens=self._skips_special)
        if piece is None:
            return self.chars
        before, text = self._chars, self._detokenizer.push(token)
        if isinstance(piece, int):
            place = self.chars
            self._run_chars += len(self._run.decode(bytes((piece,))))
            return place
        self._chars += len(text)
        had_run, self._run_chars = self._run_chars > 0 or bool(self._run.getstate()[0]), 0
        self._run.reset()
        if isinstance(piece, str):
            return self._chars - len(piece) if had_run else before
        try:
            return self._chars - len(piece.decode())
        except UnicodeDecodeError:
            return before


def offsets_of_text(tokenizer: Tokenizer, token_ids: Sequence[int], text: str) -> list[int]:
    """Of the tokens of a prompt that is shown as `text`.

    Special tokens stand in it only where the client wrote them, and a space that the tokenizer puts before it does not.
    """
    offsets, added, found = TextOffsets(tokenizer, skips_special=False), 0, list[int]()
    for token in token_ids:
        place = offsets.chars - added
        if token in tokenizer.special_ids and not text.startswith(tokenizer.spelling(token), place):
            found.append(place)
            continue
        found.append(offsets.push(token) - added)
        is_spaced = offsets.chars > 0 and tokenizer.token_bytes(token).startswith(b" ")
        if place == 0 and is_spaced and offsets.chars == len(tokenizer.token_bytes(token).decode(errors="replace")):
            added += not text.startswith(" ")
    return found
