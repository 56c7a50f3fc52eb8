"""The tokenizer of a GGUF file as the files of a Hugging Face directory.

Must not know: how a GGUF file is read (its metadata comes as a mapping), weights.

Two kinds exist (`tokenizer.ggml.model`): "gpt2", byte-level BPE with its merges in the file, whose pre-tokenizer is named and
defined in `gguf_conventions`; and "llama", SentencePiece's BPE with byte fallback, where merges follow from the scores.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from layered_llm.text.gguf_conventions import END_KEYS, UnsupportedGguf, end_spellings, pre_tokenizer_of

_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_UNUSED: Final = 5
_PADDING: Final = re.compile(r"\[PAD\d+\]")
"""What llama.cpp's converter calls a row of the model's matrices that no token has."""
_NO_TOKEN: Final = (1 << 32) - 1
"""An id that stands for none: llama.cpp's -1 in an unsigned field."""
_COMMENT: Final = "#version"
"""What begins the file merges.txt, whose lines the library still reads."""
_SPACE: Final = "\u2581"
"""What SentencePiece writes for a space."""
_NAMED_IDS: Final = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_SAMPLING: Final = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
_WITHOUT_EFFECT: Final = frozenset(
    {
        "token_type_count",
        "add_sep_token",
        "remove_extra_whitespaces",
        "precompiled_charsmap",
        *(f"{name}_token_id" for name in ("seperator", "separator", "cls", "mask", "prefix", "suffix", "middle")),
        *(f"fim_{name}_token_id" for name in ("pre", "suf", "mid")),
    }
)
"""What llama.cpp reads for other kinds of tokenizers than the two here, and names of tokens that clients spell themselves."""
_PREFIX: Final = "tokenizer.ggml."
_READ: Final = frozenset(
    {
        *("model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token", "add_eos_token", "add_space_prefix"),
        *(key.removeprefix(_PREFIX) for key in (*_NAMED_IDS.values(), *END_KEYS)),
    }
)
_SENTENCE_PIECE_DEFAULTS: Final[Mapping[str, Any]] = {
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_space_prefix": True,
}
"""What llama.cpp takes for a file that does not say."""

Spec = dict[str, Any]
"""A part of a tokenizer.json."""


@attrs.frozen
class _Metadata:
    fields: Mapping[str, Any]

    def need(self, key: str, kind: type) -> Any:
        if key not in self.fields:
            raise UnsupportedGguf(f"the GGUF file has no {key}")
        value = self.fields[key]
        if type(value) is not kind:
            raise UnsupportedGguf(f"{key} is {str(value)[:80]!r}, but must be a {kind.__name__}")
        return value

    def flag(self, key: str) -> bool:
        """False where the file does not say."""
        return bool(self.need(key, bool)) if key in self.fields else False

    def list_of(self, key: str, kind: type) -> list[Any]:
        """The file's lists are of one kind, which the first value shows."""
        values: list[Any] = self.need(key, list)
        if values and type(values[0]) is not kind:
            raise UnsupportedGguf(f"{key} is a list of {type(values[0]).__name__}, but must be one of {kind.__name__}")
        return values

    def tokens(self) -> list[str]:
        tokens = self.list_of("tokenizer.ggml.tokens", str)
        if not tokens:
            raise UnsupportedGguf("tokenizer.ggml.tokens is empty")
        return tokens

    def vocabulary(self) -> dict[str, int]:
        """The ids of all tokens. Rows that only pad the model's matrices have none, as in a Hugging Face tokenizer."""
        ids: dict[str, int] = {}
        kinds = self.for_each_token("tokenizer.ggml.token_type", int)
        for index, (token, kind) in enumerate(zip(self.tokens(), kinds, strict=True)):
            if kind == _UNUSED and _PADDING.fullmatch(token):
                continue
            if token in ids:
                raise UnsupportedGguf(f"tokenizer.ggml.tokens has {token[:80]!r} twice, as {ids[token]} and as {index}")
            ids[token] = index
        return ids

    def for_each_token(self, key: str, kind: type) -> list[Any]:
        values = self.list_of(key, kind)
        if len(values) != len(self.tokens()):
            raise UnsupportedGguf(f"{key} has {len(values)} entries, but the vocabulary has {len(self.tokens())} tokens")
        return values

    def token(self, key: str) -> str | None:
        """The spelling of the token whose id is under `key`."""
        if key not in self.fields:
            return None
        tokens = self.tokens()
        token: int = self.need(key, int)
        if not 0 <= token < len(tokens):
            raise UnsupportedGguf(f"{key} is {token}, but the vocabulary has {len(tokens)} tokens")
        return tokens[token]

    def token_if_any(self, key: str) -> str | None:
        """The same where nothing depends on it: an id that is none is as good as no id."""
        if key not in self.fields:
            return None
        token: int = self.need(key, int)
        tokens = self.tokens()
        return tokens[token] if 0 <= token < len(tokens) else None


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """File name → content: tokenizer.json, tokenizer_config.json, generation_config.json and, if any, chat_template.jinja.

    `metadata` holds the GGUF keys with plain Python values (str, int, bool, lists). Raises UnsupportedGguf.
    """
    metadata = {key: value for key, value in metadata.items() if not (key.endswith("_token_id") and value == _NO_TOKEN)}
    _refuse_unknown(metadata)
    model = _Metadata(metadata).need("tokenizer.ggml.model", str)
    match model:
        case "gpt2":
            pre = pre_tokenizer_of(_Metadata(metadata).need("tokenizer.ggml.pre", str))
            fields = _Metadata({"tokenizer.ggml.add_bos_token": pre.adds_bos, **metadata})
            spec = _byte_level(fields) | {"normalizer": pre.normalizer, "pre_tokenizer": pre.spec}
            spec["model"]["ignore_merges"] = pre.ignores_merges
        case "llama":
            fields = _Metadata({**_SENTENCE_PIECE_DEFAULTS, **metadata})
            spec = _sentence_piece(fields)
        case _:
            raise UnsupportedGguf(
                f"tokenizer.ggml.model is {model!r}; supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)"
            )
    files = {
        "tokenizer.json": _dump(spec | {"added_tokens": _added_tokens(fields), "post_processor": _surrounding(fields)}),
        "tokenizer_config.json": _dump(_tokenizer_config(fields)),
        "generation_config.json": _dump(_generation_config(fields, spec["model"]["vocab"])),
    }
    if "tokenizer.chat_template" in metadata:
        files["chat_template.jinja"] = fields.need("tokenizer.chat_template", str)
    return files


def _refuse_unknown(metadata: Mapping[str, Any]) -> None:
    """A key that is not known here may change the ids of a text."""
    names = (key.removeprefix(_PREFIX) for key in metadata if key.startswith(_PREFIX))
    unknown = sorted(name for name in names if name not in _READ and name not in _WITHOUT_EFFECT)
    if unknown:
        raise UnsupportedGguf(f"{_PREFIX}{unknown[0][:80]} is not known here, and may change a text's tokens")


def _byte_level(fields: _Metadata) -> Spec:
    merges = _merges(fields.list_of("tokenizer.ggml.merges", str))
    model = {"type": "BPE", "vocab": fields.vocabulary(), "merges": merges}
    return {
        "version": "1.0",
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }


def _merges(lines: list[str]) -> list[str] | list[tuple[str, str]]:
    """As lines, which take half the time, unless the library would take one of them for a comment."""
    return [_merge(line) for line in lines] if any(line.startswith(_COMMENT) for line in lines) else lines


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _sentence_piece(fields: _Metadata) -> Spec:
    """As transformers converts such a vocabulary: spaces are pieces, an unknown character is the tokens of its bytes."""
    has_prefix = fields.flag("tokenizer.ggml.add_space_prefix")
    prefix = [{"type": "Prepend", "prepend": _SPACE}] if has_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    visible = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    return {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [visible, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {
            "type": "BPE",
            "unk_token": fields.token("tokenizer.ggml.unknown_token_id"),
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": fields.vocabulary(),
            "merges": _merges_by_score(fields),
        },
    }


def _merges_by_score(fields: _Metadata) -> list[tuple[str, str]]:
    """Every way to put a piece together from two, the pieces of the highest score first: SentencePiece's order of merging.

    (Kudo, Richardson, SentencePiece, 2018; its BPE takes the neighbours whose union has the highest score.)
    """
    tokens, scores = fields.tokens(), fields.for_each_token("tokenizer.ggml.scores", float)
    ids = {token: index for index, token in enumerate(tokens)}
    by_score = sorted(zip(tokens, scores, strict=True), key=lambda piece: -piece[1])
    return [pair for token, _ in by_score for pair in _halves(token, ids)]


def _halves(token: str, ids: Mapping[str, int]) -> Sequence[tuple[str, str]]:
    cuts = ((token[:place], token[place:]) for place in range(1, len(token)))
    known = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
    return sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))


def _added_tokens(fields: _Metadata) -> list[Spec]:
    kinds = fields.for_each_token("tokenizer.ggml.token_type", int)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": index, "content": token, "special": kind == _CONTROL, **plain}
        for index, (token, kind) in enumerate(zip(fields.tokens(), kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _surrounding(fields: _Metadata) -> Spec | None:
    """bos and eos around a plain text, where the file asks for them."""
    before, after = (list(_asked_for(fields, name)) for name in ("bos", "eos"))
    if not before and not after:
        return None
    named = {token: {"id": token, "ids": [fields.tokens().index(token)], "tokens": [token]} for token in (*before, *after)}

    def around(*sequences: Spec) -> list[Spec]:
        marks = ([{"SpecialToken": {"id": token, "type_id": 0}} for token in side] for side in (before, after))
        first, last = marks
        return [*first, *sequences, *last]

    one, two = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {"type": "TemplateProcessing", "single": around(one), "pair": around(one, two), "special_tokens": named}


def _asked_for(fields: _Metadata, name: str) -> Iterator[str]:
    if fields.flag(f"tokenizer.ggml.add_{name}_token"):
        token = fields.token(f"tokenizer.ggml.{name}_token_id")
        if token is not None:
            yield token


def _tokenizer_config(fields: _Metadata) -> Spec:
    named = {name: fields.token_if_any(key) for name, key in _NAMED_IDS.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{name: token for name, token in named.items() if token is not None},
    }


def _generation_config(fields: _Metadata, vocabulary: Mapping[str, int]) -> Spec:
    fields.token("tokenizer.ggml.eos_token_id")  # one that is no token is not left out: the model would never end
    keyed = {key: fields.token_if_any(key) for key in END_KEYS}
    spellings = end_spellings(vocabulary, {key: token for key, token in keyed.items() if token is not None})
    ends = sorted(vocabulary[token] for token in spellings if token in vocabulary)
    sampled = {name: fields.fields[key] for name, key in _SAMPLING.items() if key in fields.fields}
    return sampled | ({"eos_token_id": ends} if ends else {})


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"
