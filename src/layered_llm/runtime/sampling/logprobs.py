"""Log probabilities of the tokens that a step sampled, and of prompt tokens, for the rows that want them.

Must not know: how a token is drawn, slots.

They are taken from the logits as the model computed them, so before the sampler changes those. A token's own entry and the one
that it may have among the likeliest are the same number, to the bit.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

import attrs
import numpy as np

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.messages.logprobs import LogprobColumns
from layered_llm.runtime.device.host_slots import SampleRow
from layered_llm.runtime.device.step_inputs import Float32s, Int32s, Int64s
from layered_llm.runtime.sampling.logit_adjustments import mask_missing

_BLOCK_IDS: Final = 256
_BLOCK_TOKENS: Final = 128
"""Prompt tokens whose logits exist at the same time: those of a whole chunk would be larger than many a model."""


def raw_logprobs(logits: Float32s, rows: Sequence[SampleRow]) -> "RawLogprobs | None":
    """Of `logits` (fp32 [rows, vocabulary]), which are not changed; None where no row wants any."""
    places = [place for place, row in enumerate(rows) if row.sampling.logprobs is not None]
    if not places:
        return None
    logprobs = log_softmax(logits[places])
    mask_missing(logprobs, (rows[place].missing for place in places))
    return RawLogprobs(places, rows, logprobs)


@attrs.frozen(eq=False)
class RawLogprobs:
    """What is reported to the rows that want any."""

    _places: Sequence[int]
    _rows: Sequence[SampleRow]
    _logprobs: Float32s
    """fp32 [places, vocabulary]; those of ids that no token has are not finite."""

    @property
    def failed(self) -> Sequence[int]:
        """Rows whose logits are not finite somewhere, which makes all of their log probabilities NaN."""
        return [self._places[index] for index in np.flatnonzero(np.isnan(self._logprobs).any(axis=1)).tolist()]

    def columns(self, token_ids: Int32s, failed: Collection[int] = ()) -> LogprobColumns:
        """Of all rows, which sampled `token_ids`; nothing is reported of those that failed."""
        wide = self._logprobs.shape[1]
        kept = [index for index, place in enumerate(self._places) if place not in failed]
        places = [self._places[index] for index in kept]
        rows = [self._rows[place] for place in places]
        tops = [min(row.sampling.logprobs or 0, wide - _count(row.missing)) for row in rows]
        logprobs = self._logprobs if len(kept) == len(self._places) else self._logprobs[kept]
        columns = _columns(logprobs, token_ids[places], tops)
        counts = np.zeros(len(self._rows), np.int32)
        counts[places] = np.frombuffer(columns.counts, np.int32)
        return attrs.evolve(columns, counts=counts.tobytes())


def following_logprobs(
    hidden: Float32s,
    token_ids: Int32s,
    top: int,
    logits_of: Callable[[Float32s], Float32s],
    missing: Int64s | None = None,
) -> LogprobColumns:
    """Of `token_ids` (int32 [tokens]), each of which follows the token of a row of `hidden` [tokens, hidden].

    Ids that are `missing` are not among the likeliest.
    """

    def reported(first: int) -> LogprobColumns:
        tokens = token_ids[first : first + _BLOCK_TOKENS]
        logprobs = log_softmax(logits_of(hidden[first : first + _BLOCK_TOKENS]))
        mask_missing(logprobs, [missing] * len(tokens))
        tops = [min(top, logprobs.shape[1] - _count(missing))] * len(tokens)
        ranks = (logprobs >= np.take_along_axis(logprobs, tokens[:, None], axis=1)).sum(axis=1, dtype=np.int32)
        return attrs.evolve(_columns(logprobs, tokens, tops), ranks=ranks.tobytes())

    return LogprobColumns.joined([reported(first) for first in range(0, len(token_ids), _BLOCK_TOKENS)])


def log_softmax(logits: Float32s) -> Float32s:
    """Of each row of `logits` (fp32 [rows, vocabulary], not changed): fp32, the sum of its exponentials in fp64.

    One that is NaN or +inf makes all of its row NaN, as none but -inf does. One that is too far below the largest is -inf.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits - logits.max(axis=-1, keepdims=True)
        sums = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)
        shifted -= np.log(sums).astype(np.float32)
    return shifted


def _count(ids: Int64s | None) -> int:
    return 0 if ids is None else ids.size


def has_nan(columns: LogprobColumns) -> bool:
    """Whether the logits of the log probabilities were not finite: one that is not makes all of its token NaN."""
    return bool(np.isnan(np.frombuffer(columns.logprobs, np.float32)).any())


def first_logprob(token: int) -> LogprobColumns:
    """Of a prompt's first token, which depends on nothing."""
    return LogprobColumns(counts=pack_i32([1]), token_ids=pack_i32([token]), logprobs=np.zeros(1, np.float32).tobytes())


def _columns(logprobs: Float32s, token_ids: Int32s, tops: Sequence[int]) -> LogprobColumns:
    """Of each row of `logprobs`, its own of `token_ids` and as many of the likeliest as `tops` says."""
    widths = np.minimum(np.array(tops, np.int32), logprobs.shape[1]) + 1
    top_ids = _likeliest(logprobs, int(widths.max(initial=1)) - 1)
    ids = np.concatenate((token_ids[:, None], top_ids), axis=1).astype(np.int32)
    values = np.take_along_axis(logprobs, ids, axis=1)
    is_entry = np.arange(ids.shape[1]) < widths[:, None]
    return LogprobColumns(counts=widths.tobytes(), token_ids=ids[is_entry].tobytes(), logprobs=values[is_entry].tobytes())


def _likeliest(logprobs: Float32s, count: int) -> Int64s:
    """The `count` likeliest ids of each row, falling; of equal ones, the lower id first."""
    likeliest = np.empty((len(logprobs), count), np.int64)
    for row, ids in zip(logprobs, likeliest, strict=True):
        found = _at_least_likely(row, count)
        ids[:] = found[np.argsort(-row[found], kind="stable")[:count]]
    return likeliest


def _at_least_likely(row: Float32s, count: int) -> Int64s:
    """Ids in order, at least `count`, that hold all of the `count` likeliest: to select among a whole vocabulary takes 10 times
    as long. As many blocks have a number that reaches the limit, so as many ids do.
    """
    starts = np.arange(0, row.size, _BLOCK_IDS)
    if 0 < count <= len(starts):
        limit = np.sort(np.maximum.reduceat(row, starts))[-count]
        found = np.flatnonzero(row >= limit)
        if found.size >= count:  # where a number is NaN none reaches it
            return found
    return np.arange(row.size)
