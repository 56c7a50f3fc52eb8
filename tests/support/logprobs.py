"""Log probability columns as tests read and write them."""

from collections.abc import Iterable, Sequence

from layered_llm.domain.columns import pack_f32, pack_i32, unpack_f32, unpack_i32
from layered_llm.domain.messages.logprobs import NO_ENTRIES, LogprobColumns, LogprobEntries

Pairs = list[tuple[int, float]]


def entries(pairs: Sequence[tuple[int, float]]) -> LogprobEntries:
    """(token id, log probability), the sampled token first."""
    if not pairs:
        return NO_ENTRIES
    return LogprobEntries(token_ids=pack_i32(pair[0] for pair in pairs), logprobs=pack_f32(pair[1] for pair in pairs))


def pairs_of(columns: LogprobColumns | None) -> list[Pairs]:
    """The entries of each sampled token."""
    return [list(zip(unpack_i32(one.token_ids), unpack_f32(one.logprobs), strict=True)) for one in (columns or ())]


def columns_of(rows: Iterable[Sequence[tuple[int, float]]]) -> LogprobColumns | None:
    return LogprobColumns.of(map(entries, rows))
