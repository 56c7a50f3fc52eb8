r"""How texts are cut before byte-level BPE merges them, by the name that a GGUF file gives it (`tokenizer.ggml.pre`).

Must not know: vocabularies, files.

GGUF leaves the definition of the name to the reader. A name that is not listed here is refused: a neighbour's pre-tokenizer
gives ids that are right for most texts and wrong for some. The definitions are those of the published tokenizer.json of the
models that a name is made from.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words with the character before them, so many digits, punctuation, line ends, spaces."""


class UnsupportedGguf(ValueError):  # noqa: N818 - states what was found
    """The GGUF file's tokenizer is not known here; the message names it."""


@attrs.frozen(kw_only=True)
class PreTokenizer:
    """What such a name stands for."""

    spec: Mapping[str, Any]
    """The `pre_tokenizer` of a tokenizer.json."""
    normalizer: Mapping[str, Any] | None = None
    ignores_merges: bool = False
    """A piece that is a token is that token, whatever the merges say."""
    adds_bos: bool = False
    """Where the file does not say (`tokenizer.ggml.add_bos_token`)."""


def pre_tokenizer_of(name: str) -> PreTokenizer:
    """Raises UnsupportedGguf for a name that is not known."""
    if name not in _KNOWN:
        raise UnsupportedGguf(f"tokenizer.ggml.pre is {name!r}; supported are {', '.join(map(repr, _KNOWN))}")
    return _KNOWN[name]


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _words(digits: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": _WORDS % digits}, "behavior": "Isolated", "invert": False}
    return _sequence(split, _byte_level(use_regex=False))


_LLAMA_3: Final = PreTokenizer(spec=_words("{1,3}"), ignores_merges=True, adds_bos=True)
_KNOWN: Final[Mapping[str, PreTokenizer]] = MappingProxyType(
    {
        "gpt-2": PreTokenizer(spec=_byte_level(use_regex=True)),
        "smollm": PreTokenizer(spec=_sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))),
        "llama-bpe": _LLAMA_3,
        "llama3": _LLAMA_3,
        "llama-v3": _LLAMA_3,
        "qwen2": PreTokenizer(spec=_words(""), normalizer={"type": "NFC"}),
    }
)
