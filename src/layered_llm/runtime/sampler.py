"""From logits to one token for each row: adjustments, temperature, min-p, top-k, top-p, and one random number.

Must not know: slots, steps, models.

The order is vLLM's: biases and penalties, temperature, then min-p, then top-k, then top-p. A token is drawn by inverting the
cumulative distribution in the order of the ids, at one uniform number that depends on seed, choice index and output position
alone. Tokens whose logits equal the last one that top-k or top-p keeps are kept too: the cut is a threshold, and never depends
on how a sort breaks ties.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch

from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.device import DeviceError
from layered_llm.runtime.logit_adjustments import adjust_logits
from layered_llm.runtime.matrices import Float32s
from layered_llm.runtime.philox import uniforms
from layered_llm.runtime.sample_row import SampleRow
from layered_llm.runtime.slots import Int32s, Int64s

_NUCLEUS_CANDIDATES: Final = 1024
"""Top-p looks among so many of the likeliest tokens first: sorting a whole vocabulary costs ten times as much."""


def sample_tokens(logits: torch.Tensor, rows: Sequence[SampleRow]) -> Int32s:
    """One token id for each row of `logits` (fp32 [rows, vocabulary], changed in place).

    Raises DeviceError where a row has no finite maximum.
    """
    adjust_logits(logits, rows)
    token_ids = torch.from_numpy(best_tokens(logits.numpy()))
    drawn = [index for index, row in enumerate(rows) if not row.is_greedy]
    if drawn:
        index = torch.tensor(drawn)
        token_ids[index] = _draw(logits[index], logits[index, token_ids[index]], [rows[row] for row in drawn])
    return token_ids.numpy().astype(np.int32)


def best_tokens(logits: Float32s) -> Int64s:
    """The first of the likeliest tokens of each row of `logits` [rows, vocabulary]; numpy finds it 6 times as fast as torch.

    Raises DeviceError where a row has no finite maximum.
    """
    token_ids = logits.argmax(axis=-1)
    if not np.isfinite(logits[np.arange(len(logits)), token_ids]).all():
        raise DeviceError("the model computed logits that are not finite")
    return token_ids


def _draw(logits: torch.Tensor, best: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """int64 [rows]. Weights are relative to each row's likeliest token, in fp64, so that no sum depends on its order much."""
    temperatures = torch.tensor([row.sampling.temperature for row in rows], dtype=torch.float64)
    weights = ((logits.double() - best[:, None]) / temperatures[:, None]).exp_()
    vocabulary = logits.shape[1]
    _cut_rows(weights, rows, lambda row: row.sampling.min_p > 0.0, _min_p_thresholds)
    _cut_rows(weights, rows, lambda row: 0 < row.sampling.top_k < vocabulary, _top_k_thresholds)
    _cut_rows(weights, rows, lambda row: row.sampling.top_p < 1.0, _top_p_thresholds)
    numbers = uniforms([row.sampling.seed for row in rows], [row.choice for row in rows], [row.output_position for row in rows])
    return _invert(weights.cumsum(dim=-1), torch.from_numpy(numbers))


def _cut_rows(
    weights: torch.Tensor,
    rows: Sequence[SampleRow],
    concerns: Callable[[SampleRow], bool],
    thresholds: Callable[[torch.Tensor, list[TokenSampling]], torch.Tensor],
) -> None:
    """Zeroes the weights that are below their row's threshold, in the rows that it concerns."""
    chosen = [index for index, row in enumerate(rows) if concerns(row)]
    if chosen:
        part = weights[chosen]
        limits = thresholds(part, [rows[index].sampling for index in chosen])
        weights[chosen] = part.masked_fill_(part < limits[:, None], 0.0)


def _min_p_thresholds(_weights: torch.Tensor, sampling: list[TokenSampling]) -> torch.Tensor:
    """Minh et al., Turning up the heat: min-p sampling, ICLR 2025. The likeliest token of each row has the weight 1."""
    return torch.tensor([params.min_p for params in sampling], dtype=torch.float64)


def _top_k_thresholds(weights: torch.Tensor, sampling: list[TokenSampling]) -> torch.Tensor:
    """The k-th largest weight of each row."""
    counts = torch.tensor([params.top_k for params in sampling])
    return weights.topk(int(counts.max())).values.gather(1, counts[:, None] - 1)[:, 0]


def _top_p_thresholds(weights: torch.Tensor, sampling: list[TokenSampling]) -> torch.Tensor:
    """The weight with which each row's likeliest tokens first reach the share top_p of its whole weight."""
    targets = weights.sum(dim=-1) * torch.tensor([params.top_p for params in sampling], dtype=torch.float64)
    likeliest = weights.topk(min(_NUCLEUS_CANDIDATES, weights.shape[1])).values
    if (likeliest.sum(dim=-1) < targets).any():
        likeliest = weights.sort(dim=-1, descending=True).values
    reached = torch.searchsorted(likeliest.cumsum(dim=-1), targets[:, None])
    return likeliest.gather(1, reached.clamp_(max=likeliest.shape[1] - 1))[:, 0]


def _invert(cumulative: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The first token of each row whose cumulative weight exceeds the row's number, as a share of its whole weight."""
    total = cumulative[:, -1]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    targets = torch.minimum(numbers * total, below_total)
    return torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
