"""Which tokens end an output of a GGUF file's model, found as llama.cpp finds them.

Must not know: how a GGUF file is read, tokenizers.

A file names one end token, seldom two or three, where a Hugging Face directory lists them all: instruct models end a turn with
one token and a document with another. llama.cpp completes the set by spelling, and files are made for it
(`llama_vocab::impl::load` in its src/llama-vocab.cpp, "special_eog_ids").
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

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
