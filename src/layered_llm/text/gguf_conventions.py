r"""What a GGUF file leaves to its reader: how texts are cut before byte-level BPE merges them, and which tokens end an output.

Must not know: how a file is read, tokenizers.

A file has only the name of its pre-tokenizer (`tokenizer.ggml.pre`). One that is not listed is refused: a neighbour's gives
ids that are right for most texts and wrong for some. The definitions are those of the published tokenizer.json of the models
that a name is made from.

A file names one end token, seldom two or three, where a Hugging Face directory lists them all: instruct models end a turn with
one token and a document with another. llama.cpp completes the set by spelling, and files are made for it
(`llama_vocab::impl::load` in its src/llama-vocab.cpp, "special_eog_ids").
"""

from collections.abc import Iterable, Mapping
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


END_KEYS: Final = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"))
"""Keys of tokens that end an output; the last three end a file in a model that fills text in."""
_ENDS: Final = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
        "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
        "<eos>", "<turn|>", "<|tool_response>",
    }
)  # fmt: skip
_FOR_A_MISSING_KEY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "tokenizer.ggml.eot_token_id": ("<｜end▁of▁sentence｜>",),  # noqa: RUF001 - DeepSeek's own characters
        "tokenizer.ggml.fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        "tokenizer.ggml.fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
        "tokenizer.ggml.fim_sep_token_id": ("<|file_sep|>",),
    }
)
"""Spellings of tokens for which there is a key, which are looked for where a file lacks it."""
_NO_END_BESIDE: Final = (
    ("<|end|>", {"<|return|>", "<|call|>"}),
    ("<|end|>", {"<|flush|>", "<|call|>"}),
    ("<|end|>", {"<|flush|>", "<|calls|>"}),
    ("<|end|>", {"<|return|>", "<|calls|>"}),
    ("</s>", {"<|tool_response>"}),
)
"""In a vocabulary that has all of the second the first ends a part of an output: harmony's messages, Gemma 4's markup."""


def end_spellings(tokens: Iterable[str], keyed: Mapping[str, str]) -> set[str]:
    """Those of `tokens` that end an output. `keyed` has the tokens that the file itself names, by their `END_KEYS`."""
    known = frozenset(tokens)
    ends = {*keyed.values(), *(_ENDS & known)}
    for key, spellings in _FOR_A_MISSING_KEY.items():
        if key not in keyed:
            ends.update(known.intersection(spellings))
    for end, beside in _NO_END_BESIDE:
        if beside <= ends:
            ends.discard(end)
    return ends
