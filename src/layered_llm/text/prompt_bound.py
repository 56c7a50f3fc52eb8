"""How long a text can be at most and still fit a context, judged without tokenizing it.

Must not know: requests, limits of an engine.

Invariant: never refuses a text whose tokens would fit. Where a part of the tokenizer may make text vanish in a way not known
here, there is no bound at all.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from layered_llm.text.decode_tables import byte_alphabet

_NFC_SHRINKS: Final = 4
"""Most characters that canonical composition turns into one: no canonical decomposition is longer (U+1F82 has 4)."""
_KEEPING_SPLITS: Final = frozenset({"ByteLevel", "Digits", "Metaspace"})


@attrs.frozen(kw_only=True)
class PromptBound:
    """A text of k characters, those in `vanishing` not counted, has at least k / `token_chars` tokens."""

    token_chars: int
    vanishing: str

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `text` surely reaches."""
        kept = len(text) - sum(map(text.count, self.vanishing))
        return -(-kept // self.token_chars)


def prompt_bound(spec: Mapping[str, Any], tokens: Iterable[str]) -> PromptBound | None:
    """The bound of a tokenizer.json with the given spellings of tokens, None when it cannot be known.

    Added tokens that swallow the spaces beside them are the caller's to look for.
    """
    spellings = set(tokens)
    shrink = _shrink(spec.get("normalizer"))
    if shrink is None or not _keeps_all(spec.get("pre_tokenizer")) or spec["model"].get("type") != "BPE":
        return None
    vanishing = _vanishing(spec, spellings)
    if vanishing is None:
        return None
    return PromptBound(token_chars=shrink * max(map(len, spellings)), vanishing=vanishing)


def _shrink(normalizer: Mapping[str, Any] | None) -> int | None:
    """Most characters that the normalizer turns into one, None when it may drop text."""
    match normalizer:
        case None | {"type": "Prepend"}:
            return 1
        case {"type": "NFC"}:
            return _NFC_SHRINKS
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern and content:
            return len(pattern)
        case {"type": "Sequence", "normalizers": list(parts)}:
            product = 1
            for part in parts:
                factor = _shrink(part)
                if factor is None:
                    return None
                product *= factor
            return product
        case _:
            return None


def _keeps_all(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    match pre_tokenizer:
        case None:
            return True
        case {"type": "Split", "behavior": behavior}:
            return bool(behavior != "Removed")
        case {"type": "Sequence", "pretokenizers": list(parts)}:
            return all(_keeps_all(part) for part in parts)
        case {"type": kind}:
            return kind in _KEEPING_SPLITS
        case _:
            return False


def _vanishing(spec: Mapping[str, Any], spellings: set[str]) -> str | None:
    """The characters that may leave no token; None when they cannot be listed.

    A BPE model silently drops what it has no token for. Every character but ASCII holds a continuation byte (0x80 … 0xBF), so
    that where all of these have tokens only ASCII characters can vanish.
    """
    if _is_byte_level(spec.get("pre_tokenizer")):
        char_of = {byte: char for char, byte in byte_alphabet().items()}
        if any(char_of[byte] not in spellings for byte in range(0x80, 0xC0)):
            return None
        return "".join(chr(byte) for byte in range(0x80) if char_of[byte] not in spellings)
    has_all_bytes = all(f"<0x{byte:02X}>" in spellings for byte in range(0x100))
    return "" if spec["model"].get("byte_fallback") and has_all_bytes else None


def _is_byte_level(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    match pre_tokenizer:
        case {"type": "ByteLevel"}:
            return True
        case {"type": "Sequence", "pretokenizers": list(parts)}:
            return any(_is_byte_level(part) for part in parts)
        case _:
            return False
