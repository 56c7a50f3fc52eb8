"""Log probabilities of tokens and of the likeliest ones beside them, as packed columns inside of a message.

Must not know: which message carries them, how they are computed.

They are the model's own: the logarithm of the softmax of its logits, before temperature, penalties, biases and masks (what vLLM
calls raw logprobs). A sampled token that wants them has one entry for itself and then one for each of the k likeliest tokens,
the likeliest first; the sampled token may be among those again. A prompt's tokens have the same, but for the first one: nothing
precedes it, so it has one entry, of 0.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final, TypeVar

import attrs

from layered_llm.domain.columns import Columnar, column, pack_i32, packed, rows, unpack_i32


@attrs.frozen(kw_only=True)
class LogprobEntries:
    """The entries of one sampled token, none where it wants none."""

    token_ids: bytes = attrs.field(default=b"", validator=packed("i"))
    logprobs: bytes = attrs.field(default=b"", validator=packed("f"))
    rank: int = 0
    """How many tokens of the vocabulary are at least as likely as this one, itself included; 0 where nobody asks."""


NO_ENTRIES: Final = LogprobEntries()
RowT = TypeVar("RowT")


@attrs.frozen(kw_only=True)
class LogprobColumns(Columnar):
    """The entries of several tokens, one token's after the other's."""

    counts: bytes = column("i")
    """Entries of each token, 0 where none are wanted of it."""
    token_ids: bytes = column("i", "entries")
    logprobs: bytes = column("f", "entries")
    """fp32; may be minus infinity, and is never NaN."""
    ranks: bytes = column("i", default=b"")
    """Of each token, as `LogprobEntries.rank`; empty where nobody asks for any."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.ranks and len(self.ranks) != len(self.counts):
            raise ValueError(f"columns of unequal length: {len(self.counts)} bytes of counts, {len(self.ranks)} of ranks")
        counts = unpack_i32(self.counts)
        if min(counts, default=0) < 0 or sum(counts) != rows("i", self.token_ids):
            raise ValueError(f"{rows('i', self.token_ids)} log probabilities for counts that add up to {sum(counts)}")

    @classmethod
    def of(cls, entries: Iterable[LogprobEntries]) -> "LogprobColumns | None":
        """The columns of sampled tokens with these entries; None where none of them wants any."""
        all_entries = list(entries)
        if all_entries.count(NO_ENTRIES) == len(all_entries):
            return None
        return cls(
            counts=pack_i32(rows("i", one.token_ids) for one in all_entries),
            token_ids=b"".join(one.token_ids for one in all_entries),
            logprobs=b"".join(one.logprobs for one in all_entries),
            ranks=pack_i32(one.rank for one in all_entries) if any(one.rank for one in all_entries) else b"",
        )

    @classmethod
    def joined(cls, parts: Sequence["LogprobColumns"]) -> "LogprobColumns":
        """The tokens of all parts."""
        return cls(
            counts=b"".join(part.counts for part in parts),
            token_ids=b"".join(part.token_ids for part in parts),
            logprobs=b"".join(part.logprobs for part in parts),
            ranks=b"".join(part.ranks or bytes(len(part.counts)) for part in parts)
            if any(part.ranks for part in parts)
            else b"",
        )

    def part(self, token: int, end: int, entry: int, end_entry: int) -> "LogprobColumns":
        """The tokens from `token` on, which have the entries from `entry` on. No object is made for each."""
        ranks = self.ranks[4 * token : 4 * end]
        return LogprobColumns(
            counts=self.counts[4 * token : 4 * end],
            token_ids=self.token_ids[4 * entry : 4 * end_entry],
            logprobs=self.logprobs[4 * entry : 4 * end_entry],
            ranks=ranks if any(ranks) else b"",
        )

    @property
    def row_count(self) -> int:
        return rows("i", self.counts)

    def __iter__(self) -> Iterator[LogprobEntries]:
        first = 0
        ranks = unpack_i32(self.ranks) if self.ranks else repeat(0)
        for count, rank in zip(unpack_i32(self.counts), ranks, strict=False):
            end = first + 4 * count
            if count:
                yield LogprobEntries(token_ids=self.token_ids[first:end], logprobs=self.logprobs[first:end], rank=rank)
            else:
                yield NO_ENTRIES
            first = end


@attrs.frozen(kw_only=True)
class PromptLogprobs(Columnar):
    """The entries of prompt tokens, for some of the rows of a message."""

    token_counts: bytes = column("i")
    """Prompt tokens whose entries come with each row of the message, 0 for most."""
    columns: LogprobColumns
    """Of these tokens, row after row."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        counts = unpack_i32(self.token_counts)
        if min(counts, default=0) < 0 or sum(counts) != self.columns.row_count:
            raise ValueError(f"{self.columns.row_count} prompt tokens for counts that add up to {sum(counts)}")

    @classmethod
    def of(cls, parts: Sequence[LogprobColumns | None]) -> "PromptLogprobs | None":
        """Those of a message whose rows have these; None where none has any."""
        if parts.count(None) == len(parts):
            return None
        present = [part for part in parts if part is not None]
        counts = pack_i32(0 if part is None else part.row_count for part in parts)
        return cls(token_counts=counts, columns=LogprobColumns.joined(present))

    @property
    def row_count(self) -> int:
        return rows("i", self.token_counts)

    def __iter__(self) -> Iterator[LogprobColumns | None]:
        entry_counts = unpack_i32(self.columns.counts)
        token = entry = 0
        for count in unpack_i32(self.token_counts):
            end = token + count
            entries = sum(entry_counts[token:end])
            yield self.columns.part(token, end, entry, entry + entries) if entries else None
            token, entry = end, entry + entries


def check_prompt_rows(prompts: PromptLogprobs, row_count: int) -> None:
    """Raises ValueError unless `prompts` have `row_count` rows."""
    if prompts.row_count != row_count:
        raise ValueError(f"log probabilities of {prompts.row_count} prompts beside {row_count} rows")


def check_rows(columns: LogprobColumns, token_ids: bytes) -> None:
    """Raises ValueError unless `columns` have one row for each item of a message's `token_ids`."""
    if columns.row_count != rows("i", token_ids):
        raise ValueError(f"log probabilities of {columns.row_count} tokens beside {rows('i', token_ids)} tokens")


def each_row(columns: Iterable[RowT] | None, row_count: int, absent: RowT) -> Iterable[RowT]:
    """What a message's columns have for each of its rows: `absent` where it has no such columns."""
    return (absent,) * row_count if columns is None else columns
