"""Log probabilities of the tokens that a step sampled, and of prompt tokens, for the rows that want them.

Must not know: how a token is drawn, slots.

They are taken from the logits as the model computed them, so before the sampler changes those. A token's own entry and the one
that it may have among the likeliest are the same number, to the bit.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

import attrs
import numpy as np
import torch

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.messages.logprobs import LogprobColumns
from layered_llm.runtime.logit_adjustments import mask_missing
from layered_llm.runtime.sample_row import SampleRow
from layered_llm.runtime.step_rows import Int32s, Int64s

_BLOCK_TOKENS: Final = 128
"""Prompt tokens whose logits exist at the same time: those of a whole chunk would be larger than many a model."""


def raw_logprobs(logits: torch.Tensor, rows: Sequence[SampleRow]) -> "RawLogprobs | None":
    """Of `logits` (fp32 [rows, vocabulary]), which are not changed; None where no row wants any."""
    places = [place for place, row in enumerate(rows) if row.sampling.logprobs is not None]
    if not places:
        return None
    logprobs = logits[places].log_softmax(dim=-1)
    mask_missing(logprobs.numpy(), (rows[place].missing for place in places))
    return RawLogprobs(places, rows, logprobs)


@attrs.frozen(eq=False)
class RawLogprobs:
    """What the rows that want any are told about."""

    _places: Sequence[int]
    _rows: Sequence[SampleRow]
    _logprobs: torch.Tensor
    """fp32 [places, vocabulary]; those of ids that no token has are not finite."""

    @property
    def failed(self) -> Sequence[int]:
        """Rows whose logits are not finite somewhere, which makes all of their log probabilities NaN."""
        return [place for place, is_nan in zip(self._places, self._logprobs.isnan().any(dim=1).tolist(), strict=True) if is_nan]

    def columns(self, token_ids: Int32s, failed: Collection[int] = ()) -> LogprobColumns:
        """Of all rows, which sampled `token_ids`; nothing is told of those that failed."""
        wide = self._logprobs.shape[1]
        kept = [index for index, place in enumerate(self._places) if place not in failed]
        places = [self._places[index] for index in kept]
        rows = [self._rows[place] for place in places]
        tops = [min(row.sampling.logprobs or 0, wide - _count(row.missing)) for row in rows]
        logprobs = self._logprobs if len(kept) == len(self._places) else self._logprobs[kept]
        told = _columns(logprobs, torch.from_numpy(token_ids[places].astype(np.int64)), tops)
        counts = np.zeros(len(self._rows), np.int32)
        counts[places] = np.frombuffer(told.counts, np.int32)
        return attrs.evolve(told, counts=counts.tobytes())


def following_logprobs(
    hidden: torch.Tensor,
    token_ids: torch.Tensor,
    top: int,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    missing: Int64s | None = None,
) -> LogprobColumns:
    """Of `token_ids` (int64 [tokens]), each of which follows the token behind a row of `hidden` [tokens, hidden].

    Ids that are `missing` are not among the likeliest.
    """

    def told(block: torch.Tensor, tokens: torch.Tensor) -> LogprobColumns:
        logprobs = logits_of(block).log_softmax(dim=-1)
        mask_missing(logprobs.numpy(), [missing] * len(tokens))
        tops = [min(top, logprobs.shape[1] - _count(missing))] * len(tokens)
        ranks = (logprobs >= logprobs.gather(1, tokens[:, None])).sum(dim=1)
        return attrs.evolve(_columns(logprobs, tokens, tops), ranks=ranks.numpy().astype(np.int32).tobytes())

    blocks = zip(hidden.split(_BLOCK_TOKENS), token_ids.split(_BLOCK_TOKENS), strict=True)
    return LogprobColumns.joined([told(block, tokens) for block, tokens in blocks])


def _count(ids: Int64s | None) -> int:
    return 0 if ids is None else ids.size


def has_nan(columns: LogprobColumns) -> bool:
    """Whether the logits behind the log probabilities were not finite: one that is not makes all of its token NaN."""
    return bool(np.isnan(np.frombuffer(columns.logprobs, np.float32)).any())


def first_logprob(token: int) -> LogprobColumns:
    """Of a prompt's first token, which depends on nothing."""
    return LogprobColumns(counts=pack_i32([1]), token_ids=pack_i32([token]), logprobs=np.zeros(1, np.float32).tobytes())


def _columns(logprobs: torch.Tensor, token_ids: torch.Tensor, tops: Sequence[int]) -> LogprobColumns:
    """Of each row of `logprobs`, its own of `token_ids` and as many of the likeliest as `tops` says."""
    widths = np.minimum(np.array(tops, np.int32), logprobs.shape[1]) + 1
    top = logprobs.topk(int(widths.max(initial=1)) - 1)
    ids = torch.cat((token_ids[:, None], top.indices), dim=1).numpy().astype(np.int32)
    values = torch.cat((logprobs.gather(1, token_ids[:, None]), top.values), dim=1).numpy()
    is_entry = np.arange(ids.shape[1]) < widths[:, None]
    return LogprobColumns(counts=widths.tobytes(), token_ids=ids[is_entry].tobytes(), logprobs=values[is_entry].tobytes())
