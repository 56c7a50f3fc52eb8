"""The tokenizer of a checkpoint: text to ids, and tables from ids to text.

Must not know: requests, chat templates, torch, transformers.

Invariant: nothing changes after construction, so that any thread may encode at any time.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import tokenizers

from layered_llm.text.decode_tables import UnsupportedTokenizer, build_table
from layered_llm.text.detokenizer import Detokenizer, start_detokenizer
from layered_llm.text.prompt_bound import PromptBound, prompt_bound

_NAMED_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class CannotEncode(ValueError):  # noqa: N818 - states what happened
    """The text has no tokens in this vocabulary; the message says what it holds."""


class Tokenizer:
    """A `tokenizers` pipeline together with the tables that make its decoding incremental."""

    def __init__(self, pipeline: tokenizers.Tokenizer, spec: Mapping[str, Any]) -> None:
        """Takes over `pipeline`, whose tokenizer.json is `spec`. Raises UnsupportedTokenizer."""
        pipeline.no_truncation()
        pipeline.no_padding()
        added = pipeline.get_added_tokens_decoder()
        tokens = {token: text for text, token in pipeline.get_vocab(with_added_tokens=False).items()}
        tokens |= {token: entry.content for token, entry in added.items()}
        self._pipeline = pipeline
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.vocabulary_size = max(tokens, default=-1) + 1
        """One above the highest id; the model's logits may be wider."""
        self.gaps = _gaps(tokens)
        """Ranges of ids below `vocabulary_size` that no token has: the first, and the one after the last. Rising."""
        swallows_spaces = any(entry.lstrip or entry.rstrip for entry in added.values())
        self.bound: PromptBound | None = None if swallows_spaces else prompt_bound(spec, tokens.values())
        whole = build_table(spec.get("decoder"), tokens)
        self._tables = {False: whole, True: whole.without(self.special_ids)}

    @classmethod
    def from_json(cls, text: str, config: Mapping[str, Any] | None = None) -> "Tokenizer":
        """From the content of a tokenizer.json and the parsed tokenizer_config.json beside it.

        Tokens that only the latter declares are added, and the ones it names (eos_token, …) are special, as in transformers.
        Raises UnsupportedTokenizer when the file cannot be read or served.
        """
        try:
            spec = json.loads(text)
            pipeline = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception for whatever it finds wrong
            raise UnsupportedTokenizer(f"tokenizer.json cannot be read: {error}") from error
        if config is not None:
            _add_declared(pipeline, config)
        return cls(pipeline, spec)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of `text`, in which spelled-out special tokens are parsed; `add_special_tokens` adds those around a plain text.

        Raises CannotEncode. The interpreter lock is free during the work.
        """
        try:
            text.encode()
            return self._pipeline.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except UnicodeEncodeError as error:
            surrogate = f"U+{ord(text[error.start]):04X}"
            raise CannotEncode(f"it holds {surrogate}, half of a surrogate pair, at character {error.start}") from error
        except Exception as error:  # plain Exception is what the library raises, as for a model without unknown token
            raise CannotEncode(f"the tokenizer refuses it: {error}") from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The library's decoding of a whole sequence; ids out of the vocabulary give nothing.

        The interpreter lock is free during the work, as it is not where the library decodes one sequence alone.
        """
        (text,) = self._pipeline.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)
        return text

    def spelling(self, token: int) -> str:
        """A token as the vocabulary has it; "" for an id that is none."""
        return self._pipeline.id_to_token(token) or ""

    def has(self, token: int) -> bool:
        """Whether a token has this id."""
        return token in self._tables[False].shown

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for by itself, special ones included: a part of a UTF-8 character, where it is one."""
        return self._tables[False].token_bytes(token)

    def start_detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """The state of a new output."""
        return start_detokenizer(self._tables[skip_special_tokens])

    def id_of(self, token: str) -> int | None:
        """The id of a token by its exact spelling."""
        return self._pipeline.token_to_id(token)


def token_text(entry: object) -> str | None:
    """The spelling of a token in a tokenizer_config.json, where it is a string or an AddedToken's fields."""
    if isinstance(entry, Mapping):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that a tokenizer_config.json names (bos_token, eos_token, …), without those that are null."""
    texts = {name: token_text(config.get(name)) for name in _NAMED_TOKENS}
    return {name: text for name, text in texts.items() if text is not None}


def _gaps(ids: Collection[int]) -> tuple[tuple[int, int], ...]:
    if len(ids) == max(ids, default=-1) + 1:
        return ()
    return tuple((before + 1, token) for before, token in pairwise((-1, *sorted(ids))) if token > before + 1)


def _add_declared(pipeline: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    known = {entry.content for entry in pipeline.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder") or {}
    entries = [entry for _, entry in sorted(declared.items(), key=lambda item: int(item[0]))]
    additional = config.get("additional_special_tokens") or ()
    names = [*named_tokens(config).values(), *filter(None, map(token_text, additional))]
    _add(pipeline, known, [_added_token(entry) for entry in entries])
    _add(pipeline, known, [tokenizers.AddedToken(name, special=True, normalized=False) for name in names])


def _add(pipeline: tokenizers.Tokenizer, known: set[str], tokens: Iterable[tokenizers.AddedToken]) -> None:
    for token in tokens:
        if token.content not in known:
            known.add(token.content)
            pipeline.add_tokens([token])


def _added_token(entry: Mapping[str, Any]) -> tokenizers.AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return tokenizers.AddedToken(entry["content"], **{flag: entry[flag] for flag in flags if flag in entry})
