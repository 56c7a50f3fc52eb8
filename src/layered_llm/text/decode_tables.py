"""What each token id turns into when it is decoded: tables made once from the `decoder` of a tokenizer.json.

Must not know: requests, streams, how tables are walked (`detokenizer` does that).

Two families exist. Byte-level BPE maps every token to bytes and decodes their concatenation as UTF-8 with replacement. The
SentencePiece family maps every token to a piece of text or, under byte fallback, to one byte of a run; decoders are the stages
that the `tokenizers` library documents (Replace, Strip, Metaspace, ByteFallback, Fuse). What is none of these is refused by
name rather than decoded nearly right.
"""

import codecs
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import attrs

Stage = Callable[[str], str]

_SHOWN: Final = 200
_FALLBACK: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedTokenizer(ValueError):  # noqa: N818 - states what was found
    """The tokenizer holds a part that cannot be served exactly; the message names it."""


@attrs.frozen(kw_only=True)
class ByteTable:
    """Byte-level BPE: `shown` maps a token id to its bytes. An id that it lacks decodes to nothing."""

    shown: Mapping[int, bytes]

    def token_bytes(self, token: int) -> bytes:
        """What one token stands for by itself."""
        return self.shown.get(token, b"")

    def without(self, ids: Collection[int]) -> "ByteTable":
        """The same table with `ids` decoding to nothing."""
        return ByteTable(shown={token: piece for token, piece in self.shown.items() if token not in ids})


@attrs.frozen(kw_only=True)
class PieceTable:
    """SentencePiece style: `shown` maps a token id to its text, or to a byte (0 … 255) of a byte-fallback run.

    An id that it lacks decodes to nothing.
    """

    shown: Mapping[int, str | int]
    first: Mapping[int, str | int]
    """Used in place of `shown` for the first token that decodes to anything."""
    after_run: tuple[Stage, ...]
    """Stages after ByteFallback: they see the text of a byte run too."""
    strip: tuple[tuple[str, int], ...]
    """(character, count): most leading characters that are cut from the whole text, one pair after the other."""

    def token_bytes(self, token: int) -> bytes:
        """What one token stands for inside of a text, so with the space that is cut from the text's front."""
        piece = self.shown.get(token, "")
        return piece.encode() if isinstance(piece, str) else bytes((piece,))

    def without(self, ids: Collection[int]) -> "PieceTable":
        """The same table with `ids` decoding to nothing."""
        return attrs.evolve(
            self,
            shown={token: piece for token, piece in self.shown.items() if token not in ids},
            first={token: piece for token, piece in self.first.items() if token not in ids},
        )


DecodeTable = ByteTable | PieceTable


def byte_alphabet() -> dict[str, int]:
    """The characters that stand for the bytes 0 … 255 in the vocabulary of a byte-level BPE (GPT-2's alphabet).

    Printable Latin-1 characters stand for themselves; every other byte, in order, for a character from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def build_table(decoder: Mapping[str, Any] | None, tokens: Mapping[int, str]) -> DecodeTable:
    """The table for the `decoder` object of a tokenizer.json. Raises UnsupportedTokenizer."""
    if decoder is None:
        return _spaced_table(tokens)
    stages = list(_flatten(decoder))
    kinds = [stage["type"] for stage in stages]
    if "ByteLevel" in kinds:
        if kinds[0] != "ByteLevel" or any(kind != "Fuse" for kind in kinds[1:]):
            raise UnsupportedTokenizer(f"decoder stages {str(kinds)[:_SHOWN]} are not supported: ByteLevel must stand alone")
        return _byte_table(tokens)
    return _piece_table(stages, tokens)


def _flatten(decoder: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    if "type" not in decoder:
        raise UnsupportedTokenizer(f"decoder stage {str(dict(decoder))[:_SHOWN]} has no type")
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for inner in decoder["decoders"]:
        yield from _flatten(inner)


def _spaced_table(tokens: Mapping[int, str]) -> PieceTable:
    """Without a decoder the library joins tokens with one space."""
    spaced = {token: f" {text}" for token, text in tokens.items()}
    return PieceTable(shown=spaced, first=dict(tokens), after_run=(), strip=())


def _byte_table(tokens: Mapping[int, str]) -> ByteTable:
    alphabet = codecs.charmap_build("".join(sorted(byte_alphabet(), key=byte_alphabet().__getitem__)))

    def spell(text: str) -> bytes:
        try:
            return codecs.charmap_encode(text, "strict", alphabet)[0]
        except UnicodeEncodeError:  # an added token that holds, say, a plain space stands for its own UTF-8
            return text.encode()

    return ByteTable(shown={token: spell(text) for token, text in tokens.items()})


def _piece_table(stages: list[Mapping[str, Any]], tokens: Mapping[int, str]) -> PieceTable:
    fuse = next((place for place, stage in enumerate(stages) if stage["type"] == "Fuse"), len(stages))
    before, fused = stages[:fuse], [stage for stage in stages[fuse:] if stage["type"] != "Fuse"]
    run = next((place for place, stage in enumerate(before) if stage["type"] == "ByteFallback"), None)
    early, late = (before, []) if run is None else (before[:run], before[run + 1 :])

    def table(*, first: bool) -> dict[int, str | int]:
        early_stages = [_stage(stage, first=first) for stage in early]
        late_stages = [_stage(stage, first=first) for stage in late]
        return {token: _piece(text, early_stages, late_stages, run is not None) for token, text in tokens.items()}

    shown = table(first=False)
    differs = any(stage["type"] == "Metaspace" and stage.get("prepend_scheme", "always") != "never" for stage in before)
    if differs and run is not None:
        raise UnsupportedTokenizer("decoder stages Metaspace and ByteFallback together are not supported")
    return PieceTable(
        shown=shown,
        first=table(first=True) if differs else shown,
        after_run=tuple(_stage(stage, first=False) for stage in late),
        strip=tuple(_fused_strip(stage) for stage in fused),
    )


def _piece(text: str, early: Iterable[Stage], late: Iterable[Stage], has_fallback: bool) -> str | int:
    for stage in early:
        text = stage(text)
    if has_fallback and (match := _FALLBACK.fullmatch(text)):
        return int(match[1], 16)
    for stage in late:
        text = stage(text)
    return text


def _stage(stage: Mapping[str, Any], *, first: bool) -> Stage:
    match stage["type"]:
        case "Replace" if stage["pattern"].get("String"):
            pattern, content = stage["pattern"]["String"], stage["content"]
            return lambda text: text.replace(pattern, content)
        case "Strip" if stage["stop"] == 0:
            char, most = stage["content"], stage["start"]
            return lambda text: strip_leading(text, char, most)
        case "Metaspace":
            mark = stage["replacement"]
            gap = "" if first and stage.get("prepend_scheme", "always") != "never" else " "
            return lambda text: text.replace(mark, gap)
        case _:
            raise UnsupportedTokenizer(f"decoder stage {str(dict(stage))[:_SHOWN]} is not supported")


def _fused_strip(stage: Mapping[str, Any]) -> tuple[str, int]:
    if stage["type"] == "Strip" and stage["stop"] == 0:
        return stage["content"], stage["start"]
    raise UnsupportedTokenizer(f"decoder stage {str(dict(stage))[:_SHOWN]} behind Fuse is not supported")


def strip_leading(text: str, char: str, most: int) -> str:
    """`text` without its first characters that equal `char`, at most `most` of them."""
    return text[min(most, len(text) - len(text.lstrip(char))) :]
