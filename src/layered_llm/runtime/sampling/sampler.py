"""From logits to one token for each row: adjustments, top-n-sigma, temperature, min-p, top-k, top-p, and one random number.

Must not know: slots, steps, models.

The order is vLLM's: biases and penalties, temperature, then min-p, then top-k, then top-p. top-n-sigma comes before these, as
in llama.cpp; no temperature changes what it keeps. A token is drawn by inverting the cumulative distribution in the order of
the ids, at one uniform number that depends on seed, choice index and output position alone. Tokens whose logits equal the last
one that top-k or top-p keeps are kept too: the cut is a threshold, and never depends on how a sort breaks ties.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.device.host_slots import SampleRow
from layered_llm.runtime.device.step_inputs import Float32s, Int32s, Int64s
from layered_llm.runtime.sampling.logit_adjustments import adjust_logits
from layered_llm.runtime.sampling.philox import uniforms

Float64s = NDArray[np.float64]

_FLOORS: Final = (1e-2, 1e-4, 1e-6)
"""top-k and top-p look at the weights above these first: to sort a whole vocabulary costs a hundred times as much."""
_BLOCK_TOKENS: Final = 256


def sample_tokens(logits: Float32s, rows: Sequence[SampleRow]) -> tuple[Int32s, Sequence[int]]:
    """One token id for each row of `logits` (fp32 [rows, vocabulary], changed in place), and the rows that failed.

    A row fails where its logits are not finite; its token is 0.
    """
    adjust_logits(logits, rows)
    token_ids, failed = best_tokens(logits)
    drawn = [index for index, row in enumerate(rows) if not row.is_greedy and index not in failed]
    numbers = _numbers([rows[index] for index in drawn])
    for index, number in zip(drawn, numbers, strict=True):
        best = logits[index, token_ids[index]]
        token_ids[index] = _draw(logits[index], best, rows[index], float(number))
    return token_ids.astype(np.int32), failed


def _numbers(rows: Sequence[SampleRow]) -> Float64s:
    """A number in 0 … 1 for each row."""
    if not rows:
        return np.empty(0)
    return uniforms([row.sampling.seed for row in rows], [row.choice for row in rows], [row.output_position for row in rows])


def best_tokens(logits: Float32s) -> tuple[Int64s, Sequence[int]]:
    """The first of the likeliest tokens of each row of `logits` [rows, vocabulary]; numpy finds it 6 times as fast as torch.

    Behind them the rows that failed, where a logit is NaN (the largest to argmax) or none is finite; their token is 0.
    """
    token_ids = logits.argmax(axis=-1)
    failed = [row for row, token in enumerate(token_ids.tolist()) if not math.isfinite(logits[row, token])]
    if failed:
        token_ids[failed] = 0
    return token_ids, failed


def _draw(logits: Float32s, best: np.float32, row: SampleRow, number: float) -> int:
    """The row's token. Weights are relative to the likeliest one, in fp64, so that no sum depends on its order much."""
    sampling = row.sampling
    weights = np.subtract(logits, best, dtype=np.float64)
    np.divide(weights, sampling.temperature, out=weights)
    np.exp(weights, out=weights)
    if sampling.top_n_sigma:
        weights[_far_below(logits, best, sampling.top_n_sigma)] = 0.0
    threshold = _threshold(weights, sampling)
    if threshold == 0.0:
        return _invert_all(weights, number)
    kept = np.flatnonzero(weights >= threshold)
    return int(kept[_invert(weights[kept], number)])


def _far_below(logits: Float32s, best: np.float32, sigmas: float) -> NDArray[np.bool_]:
    """Which logits are further below the best one than `sigmas` standard deviations of all that are not masked.

    Tang et al., Top-n-sigma: Not all logits are you need, 2024.
    """
    scores = logits.astype(np.float64)
    far: NDArray[np.bool_] = scores < best - sigmas * scores[scores > -np.inf].std()
    return far


def _threshold(weights: Float64s, sampling: TokenSampling) -> float:
    """The least weight that min-p, top-k and top-p leave, each of what is left by those before; 0 where none of them is set.

    min-p: Minh et al., Turning up the heat: min-p sampling, ICLR 2025. The likeliest token has the weight 1.
    """
    threshold = sampling.min_p
    if 0 < sampling.top_k < len(weights):
        largest = _largest(weights, lambda found: len(found) >= sampling.top_k)
        threshold = max(threshold, float(largest[sampling.top_k - 1]))
    if sampling.top_p < 1.0:
        target = sampling.top_p * weights[weights >= threshold].sum()
        largest = _largest(weights, lambda found: found[found >= threshold].sum() >= target)
        reached = int(np.searchsorted(largest.cumsum(), target))
        threshold = max(threshold, float(largest[min(reached, len(largest) - 1)]))
    return threshold


def _largest(weights: Float64s, suffices: Callable[[Float64s], bool]) -> Float64s:
    """So many of the largest weights that they suffice, falling; all of them where fewer do not."""
    for floor in _FLOORS:
        found = weights[weights >= floor]
        if suffices(found):
            break
    else:
        found = weights
    return np.sort(found)[::-1]


def _invert_all(weights: Float64s, number: float) -> int:
    """`_invert` for a whole vocabulary: finds a block by the sums of all, then a token in it, which is less to add up."""
    starts = np.arange(0, len(weights), _BLOCK_TOKENS)
    sums = np.add.reduceat(weights, starts)
    block = _invert(sums, number)
    before = sums[:block].sum()
    within = weights[starts[block] : starts[block] + _BLOCK_TOKENS]
    share = (number * sums.sum() - before) / sums[block]
    return int(starts[block]) + _invert(within, min(max(share, 0.0), 1.0))


def _invert(weights: Float64s, number: float) -> int:
    """The first place whose cumulative weight exceeds the number, as a share of the whole weight; never one without weight."""
    cumulative = weights.cumsum()
    total = cumulative[-1]
    return int(np.searchsorted(cumulative, min(number * total, np.nextafter(total, 0.0)), side="right"))
