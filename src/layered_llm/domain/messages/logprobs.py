"""Log probabilities of sampled tokens and of the likeliest ones beside them, as packed columns inside of a message.

Must not know: which message carries them, how they are computed.

They are the model's own: the logarithm of the softmax of its logits, before temperature, penalties, biases and masks (what vLLM
calls raw logprobs). A sampled token that wants them has one entry for itself and then one for each of the k likeliest tokens,
the likeliest first; the sampled token may be among those again.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from layered_llm.domain.columns import pack_i32, packed, rows, same_rows, unpack_i32


@attrs.frozen(kw_only=True)
class LogprobEntries:
    """The entries of one sampled token, none where it wants none."""

    token_ids: bytes = attrs.field(default=b"", validator=packed("i"))
    logprobs: bytes = attrs.field(default=b"", validator=packed("f"))


NO_ENTRIES: Final = LogprobEntries()


@attrs.frozen(kw_only=True)
class LogprobColumns:
    """The entries of all sampled tokens of a message, one token's behind the other's."""

    counts: bytes = attrs.field(validator=packed("i"))
    """Entries of each sampled token of the message, 0 where it wants none."""
    token_ids: bytes = attrs.field(validator=packed("i"))
    logprobs: bytes = attrs.field(validator=packed("f"))
    """fp32; may be minus infinity, and is never NaN."""

    def __attrs_post_init__(self) -> None:
        same_rows(token_ids=("i", self.token_ids), logprobs=("f", self.logprobs))
        counts = unpack_i32(self.counts)
        if min(counts, default=0) < 0 or sum(counts) != rows("i", self.token_ids):
            raise ValueError(f"{rows('i', self.token_ids)} log probabilities for counts that add up to {sum(counts)}")

    @classmethod
    def of(cls, entries: Iterable[LogprobEntries]) -> "LogprobColumns | None":
        """The columns of sampled tokens with these entries; None where none of them wants any."""
        all_entries = list(entries)
        if all(one is NO_ENTRIES for one in all_entries):
            return None
        return cls(
            counts=pack_i32(rows("i", one.token_ids) for one in all_entries),
            token_ids=b"".join(one.token_ids for one in all_entries),
            logprobs=b"".join(one.logprobs for one in all_entries),
        )

    @property
    def row_count(self) -> int:
        return rows("i", self.counts)

    def __iter__(self) -> Iterator[LogprobEntries]:
        first = 0
        for count in unpack_i32(self.counts):
            behind = first + 4 * count
            if count:
                yield LogprobEntries(token_ids=self.token_ids[first:behind], logprobs=self.logprobs[first:behind])
            else:
                yield NO_ENTRIES
            first = behind


def check_rows(columns: LogprobColumns | None, token_ids: bytes) -> None:
    """Raises ValueError unless `columns`, where a message has them, have one row for each item of its `token_ids`."""
    if columns is not None and columns.row_count != rows("i", token_ids):
        raise ValueError(f"log probabilities of {columns.row_count} tokens beside {rows('i', token_ids)} tokens")


def entries_of(columns: LogprobColumns | None, token_count: int) -> Iterable[LogprobEntries]:
    """The entries of each of a message's tokens."""
    return (NO_ENTRIES,) * token_count if columns is None else columns
