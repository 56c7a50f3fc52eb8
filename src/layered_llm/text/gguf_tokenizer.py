"""The tokenizer of a GGUF file as the files of a Hugging Face directory.

Must not know: how a GGUF file is read (its metadata comes as a mapping), weights.

GGUF names the pre-tokenizer (`tokenizer.ggml.pre`) and leaves its definition to the reader. A name that is not listed here is
refused: a neighbour's pre-tokenizer gives ids that are right for most texts and wrong for some.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_NAMED_IDS: Final = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_END_IDS: Final = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


class UnsupportedGguf(ValueError):  # noqa: N818 - states what was found
    """The GGUF file's tokenizer is not known here; the message names it."""


@attrs.frozen
class _Metadata:
    fields: Mapping[str, Any]

    def need(self, key: str) -> Any:
        if key not in self.fields:
            raise UnsupportedGguf(f"the GGUF file has no {key}")
        return self.fields[key]

    def token(self, key: str) -> str | None:
        """The spelling of the token whose id stands under `key`."""
        if key not in self.fields:
            return None
        tokens, token = self.need("tokenizer.ggml.tokens"), self.fields[key]
        if not 0 <= token < len(tokens):
            raise UnsupportedGguf(f"{key} is {token}, but the vocabulary has {len(tokens)} tokens")
        return str(tokens[token])


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """File name → content: tokenizer.json, tokenizer_config.json, generation_config.json and, if any, chat_template.jinja.

    `metadata` holds the GGUF keys with plain Python values (str, int, bool, lists). Raises UnsupportedGguf.
    """
    fields = _Metadata(metadata)
    files = {
        "tokenizer.json": _pipeline(fields).to_str(),
        "tokenizer_config.json": _dump(_tokenizer_config(fields)),
        "generation_config.json": _dump(_generation_config(fields)),
    }
    if "tokenizer.chat_template" in metadata:
        files["chat_template.jinja"] = str(metadata["tokenizer.chat_template"])
    return files


def _pipeline(fields: _Metadata) -> tokenizers.Tokenizer:
    model = fields.need("tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedGguf(f"tokenizer.ggml.model is {model!r}; supported is 'gpt2' (byte-level BPE)")
    pre_tokenizer = _pre_tokenizer(fields.need("tokenizer.ggml.pre"))
    tokens: Sequence[str] = fields.need("tokenizer.ggml.tokens")
    merges = [_merge(line) for line in fields.need("tokenizer.ggml.merges")]
    pipeline = tokenizers.Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    pipeline.pre_tokenizer = pre_tokenizer
    pipeline.decoder = decoders.ByteLevel()
    pipeline.add_tokens(_added_tokens(tokens, fields.need("tokenizer.ggml.token_type")))
    _surround(pipeline, fields)
    return pipeline


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    match name:
        case "smollm":
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        case "gpt-2":
            return byte_level
        case _:
            raise UnsupportedGguf(f"tokenizer.ggml.pre is {name!r}; supported are 'smollm' and 'gpt-2'")


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _added_tokens(tokens: Sequence[str], types: Sequence[int]) -> list[AddedToken]:
    return [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _surround(pipeline: tokenizers.Tokenizer, fields: _Metadata) -> None:
    """bos and eos around a plain text, where the file asks for them."""
    bos = fields.token("tokenizer.ggml.bos_token_id") if fields.fields.get("tokenizer.ggml.add_bos_token") else None
    eos = fields.token("tokenizer.ggml.eos_token_id") if fields.fields.get("tokenizer.ggml.add_eos_token") else None
    if bos is None and eos is None:
        return
    pieces = [piece for piece in (bos, "$A", eos) if piece is not None]
    named = [(token, pipeline.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token is not None]
    pipeline.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=named)


def _tokenizer_config(fields: _Metadata) -> dict[str, Any]:
    named = {name: fields.token(key) for name, key in _NAMED_IDS.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{name: token for name, token in named.items() if token is not None},
    }


def _generation_config(fields: _Metadata) -> dict[str, Any]:
    ends = sorted({fields.fields[key] for key in _END_IDS if key in fields.fields})
    return {"eos_token_id": ends} if ends else {}


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
