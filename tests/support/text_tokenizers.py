"""Tiny tokenizers of both decoder families, made with the `tokenizers` library."""

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from layered_llm.text.declared_tokens import TokenFiles
from layered_llm.text.decode_tables import byte_alphabet
from layered_llm.text.tokenizer import Tokenizer

EOS = "<|end|>"
BOS = "<|begin|>"

_WORDS = ("hello", "Ġworld", "Ġthe", "Ġ", "he", "llo", "Ġw", "or", "ld", "end", "stop", "END", "ðŁ", "âĢį", "à¤", "ê°")
_PIECES = (
    "▁",
    "▁▁",
    "▁hello",
    "▁world",
    "hello",
    "a",
    "b",
    "c",
    " ",
    "é",
    "▁a",
    "का",
    "🙂",
    "▁END",
    "E",
    "N",
    "D",
    "s",
    "t",
    "o",
    "p",
)


def wrap(pipeline: tokenizers.Tokenizer, config: dict[str, Any] | None = None) -> Tokenizer:
    return Tokenizer.from_json(pipeline.to_str(), TokenFiles(config=config or {}))


def byte_level_pipeline(*, words: Sequence[str] = _WORDS, missing: bytes = b"") -> tokenizers.Tokenizer:
    """Byte-level BPE of all bytes but `missing`, the merges that make `words`, and two special tokens at the end."""
    vocabulary = {char: 0 for char, byte in byte_alphabet().items() if byte not in missing}
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        for cut in range(1, len(word)):
            merges[(word[:cut], word[cut])] = None
            vocabulary[word[: cut + 1]] = 0
    vocabulary = {token: index for index, token in enumerate(vocabulary)}
    pipeline = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    pipeline.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (BOS, EOS)])
    pipeline.add_tokens([AddedToken("<tool call>", special=False, normalized=False)])
    return pipeline


def byte_level() -> Tokenizer:
    return wrap(byte_level_pipeline())


def byte_level_with_bos() -> Tokenizer:
    pipeline = byte_level_pipeline()
    bos = pipeline.token_to_id(BOS)
    pipeline.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    return wrap(pipeline)


def llama_style_pipeline(decoder: decoders.Decoder) -> tokenizers.Tokenizer:
    """SentencePiece-style BPE with byte fallback; "<s>", "</s>" are special, the first ids."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(0x100)), *_PIECES]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pipeline = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[("▁", "▁"), ("▁", "a")], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    pipeline.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pipeline.decoder = decoder
    pipeline.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    return pipeline


def llama_decoder() -> decoders.Decoder:
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", left=1, right=0)]
    )


def llama_style() -> Tokenizer:
    return wrap(llama_style_pipeline(llama_decoder()))


def gemma_style() -> Tokenizer:
    return wrap(llama_style_pipeline(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])))


def metaspace_style(prepend_scheme: str = "always") -> Tokenizer:
    return wrap(llama_style_pipeline(decoders.Metaspace(replacement="▁", prepend_scheme=prepend_scheme)))


def without_decoder() -> Tokenizer:
    pipeline = llama_style_pipeline(llama_decoder())
    spec = json.loads(pipeline.to_str()) | {"decoder": None}
    return Tokenizer.from_json(json.dumps(spec))
