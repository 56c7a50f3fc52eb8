"""The tokenizer of a checkpoint: text to ids, tables from ids to text, and which of the ids there are.

Must not know: requests, sampling, chat templates, torch, transformers.

Its ids and the model's need not agree. Many models have wider logits than their tokenizer, padded to a round number: what such
an id would be sampled as has no text, and its rows were never trained. A tokenizer may have ids that the logits do not reach.

Invariant: nothing changes after construction, so that any thread may encode at any time.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs
import tokenizers
import tokenizers.models

from layered_llm.domain.columns import pack_i32
from layered_llm.text.declared_tokens import DeclaredTokens, TokenFiles
from layered_llm.text.decode_tables import ByteTable, UnsupportedTokenizer, build_table
from layered_llm.text.detokenizer import ByteLevelDetokenizer, Detokenizer, PieceDetokenizer
from layered_llm.text.prompt_bound import PromptBound, prompt_bound

CACHED_WORDS: Final = 1024
_MOST_ID: Final = (1 << 31) - 1
_SHOWN: Final = 300
_PANIC: Final = "PanicException"
"""Where the library's Rust code fails: no Exception, and of a class that cannot be imported."""


class CannotEncode(ValueError):  # noqa: N818 - states what happened
    """The text has no tokens in this vocabulary; the message says what it holds."""


class Tokenizer:
    """A `tokenizers` pipeline together with the tables that make its decoding incremental."""

    def __init__(
        self, pipeline: tokenizers.Tokenizer, spec: Mapping[str, Any], named_tokens: Mapping[str, str] | None = None
    ) -> None:
        """Takes over `pipeline`, whose tokenizer.json is `spec`. Raises UnsupportedTokenizer."""
        pipeline.no_truncation()
        pipeline.no_padding()
        _bound_cache(pipeline)
        added = pipeline.get_added_tokens_decoder()
        vocabulary = spec["model"].get("vocab")  # most models' is what the library would make anew
        if not isinstance(vocabulary, dict):
            vocabulary = pipeline.get_vocab(with_added_tokens=False)
        tokens = {token: text for text, token in vocabulary.items()}
        if isinstance(pipeline.model, tokenizers.models.Unigram):  # a list: two places in it may have the same spelling
            places = range(pipeline.get_vocab_size(with_added_tokens=False))
            tokens |= {token: pipeline.id_to_token(token) or "" for token in places if token not in tokens}
        tokens |= {token: entry.content for token, entry in added.items()}
        self._pipeline = pipeline
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.vocabulary_size = max(tokens, default=-1) + 1
        """One above the highest id; the model's logits may be wider."""
        if self.vocabulary_size > _MOST_ID:
            raise UnsupportedTokenizer(f"{tokens[self.vocabulary_size - 1]!r:.80} has the id {self.vocabulary_size - 1}")
        self.named_tokens = dict(named_tokens or {})
        """Spellings of bos_token, eos_token and the like."""
        self.gaps = _gaps(tokens)
        """Ranges of ids below `vocabulary_size` that no token has: the first, and the one after the last. Rising."""
        swallows_spaces = any(entry.lstrip or entry.rstrip for entry in added.values())
        self.bound: PromptBound | None = None if swallows_spaces else prompt_bound(spec, tokens.values())
        whole = build_table(spec.get("decoder"), tokens)
        self._tables = {False: whole, True: whole.without(self.special_ids)}

    @classmethod
    def from_json(cls, text: str, files: TokenFiles | None = None) -> "Tokenizer":
        """From the content of a tokenizer.json and of the files beside it.

        Tokens that only the latter declare are added, and the ones that they name (eos_token, …) are special, as in
        transformers. Raises UnsupportedTokenizer when a file cannot be read or served.
        """
        pipeline = _read_pipeline(text)
        try:
            spec = json.loads(text)
        except RecursionError as error:
            raise UnsupportedTokenizer("tokenizer.json cannot be read: it is nested too deeply") from error
        files = files or TokenFiles()
        declared = DeclaredTokens.of(files, spec.get("added_tokens") or ())
        declared.add_to(pipeline)
        _refuse_changed_texts(files.config, pipeline)
        return cls(pipeline, spec, declared.spellings)

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
            raise CannotEncode(f"the tokenizer refuses it: {_line(error)}") from error
        except BaseException as error:
            if type(error).__name__ != _PANIC:
                raise
            raise CannotEncode(f"the tokenizer fails: {_line(error)}") from error

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

    def has_all(self, token_ids: Iterable[int]) -> bool:
        """The same of many, without a call for each."""
        return self._tables[False].shown.keys() >= set(token_ids)

    def shown(self, token: int, *, skip_special_tokens: bool) -> bytes | str | int | None:
        """What a text shows of a token: bytes or characters, one byte of a run, or nothing."""
        return self._tables[skip_special_tokens].shown.get(token)

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for by itself, special ones included: a part of a UTF-8 character, where it is one."""
        return self._tables[False].token_bytes(token)

    def start_detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """The state of a new output."""
        table = self._tables[skip_special_tokens]
        return ByteLevelDetokenizer(table) if isinstance(table, ByteTable) else PieceDetokenizer(table)

    def id_of(self, token: str) -> int | None:
        """The id of a token by its exact spelling."""
        return self._pipeline.token_to_id(token)


def _bound_cache(pipeline: tokenizers.Tokenizer) -> None:
    """The library keeps 10,000 words of up to 256 characters, some 60 MB. With fewer, a text takes as long as before."""
    resize = getattr(pipeline.model, "_resize_cache", None)  # WordPiece and WordLevel keep none
    if resize is not None:
        resize(CACHED_WORDS)


def _read_pipeline(text: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception for whatever it finds wrong
        raise UnsupportedTokenizer(f"tokenizer.json cannot be read: {_line(error)}") from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise UnsupportedTokenizer(f"tokenizer.json cannot be read: {_line(error)}") from error


def _line(error: BaseException) -> str:
    """The library quotes the file, whatever is in it."""
    return " ".join(str(error).split())[:_SHOWN]


def _refuse_changed_texts(config: Mapping[str, Any], pipeline: tokenizers.Tokenizer) -> None:
    """transformers can take spaces out of decoded texts, but does not where the model is BPE, unless it is forced to."""
    forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    is_bpe = isinstance(pipeline.model, tokenizers.models.BPE)
    if config.get("clean_up_tokenization_spaces") and (not is_bpe or config.get(forced)):
        kind = type(pipeline.model).__name__
        raise UnsupportedTokenizer(
            f"clean_up_tokenization_spaces of tokenizer_config.json takes spaces out of the texts of this {kind} model; "
            "that is not supported"
        )


def _gaps(ids: Collection[int]) -> tuple[tuple[int, int], ...]:
    if len(ids) == max(ids, default=-1) + 1:
        return ()
    return tuple((before + 1, token) for before, token in pairwise((-1, *sorted(ids))) if token > before + 1)


@attrs.frozen(eq=False)
class TokenIds:
    """The ids of one tokenizer that one model can take and sample."""

    _tokenizer: Tokenizer
    size: int
    """No id at or above it exists."""
    _has_gaps: bool
    """Whether ids below `size` are missing."""
    missing_ranges: bytes
    """Ids of the model that are missing, packed as `TokenSampling.missing_ranges`."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, model_size: int) -> "TokenIds":
        """Of a model with so many logits."""
        size = min(tokenizer.vocabulary_size, model_size)
        ranges = [gap for first, end in tokenizer.gaps if first < size for gap in (first, min(end, size))]
        has_gaps = bool(ranges)
        if size < model_size:
            ranges += [size, model_size]
        return cls(tokenizer, size, has_gaps, pack_i32(ranges))

    def has(self, token: int) -> bool:
        return token < self.size and self._tokenizer.has(token)

    def fault(self, token_ids: Sequence[int]) -> str | None:
        """What is wrong with the first of `token_ids` that does not exist, as words to put after "holds"; None if all do."""
        # A prompt may have a hundred thousand. Where ids have no gaps the least and the largest speak for all of them.
        is_in_range = not token_ids or (min(token_ids) >= 0 and max(token_ids) < self.size)
        if is_in_range and (not self._has_gaps or self._tokenizer.has_all(token_ids)):
            return None
        for token in token_ids:
            if not 0 <= token < self.size:
                return f"{token}, which is out of the vocabulary of {self.size} tokens"
            if not self._tokenizer.has(token):
                return f"{token}, which is no token of the tokenizer, though below {self.size}"
        return None
