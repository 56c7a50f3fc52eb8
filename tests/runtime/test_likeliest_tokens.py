"""The likeliest tokens are those of a full sort, whatever the numbers."""

import numpy as np
import pytest
from numpy.typing import NDArray

from layered_llm.runtime.sampling.logprobs import _likeliest, log_softmax


def by_sorting(row: NDArray[np.float32], count: int) -> list[int]:
    return sorted(range(row.size), key=lambda token: (-row[token], token))[:count]


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000])
@pytest.mark.parametrize("count", [0, 1, 3, 20])
@pytest.mark.parametrize("levels", [2, 40, 10**6])
def test_the_likeliest_are_those_of_a_full_sort_and_ties_go_by_id(size: int, count: int, levels: int) -> None:
    rows = (np.random.default_rng(size).integers(0, levels, (3, size)) / 7).astype(np.float32)
    count = min(count, size)
    assert [by_sorting(row, count) for row in rows] == _likeliest(rows, count).tolist()


@pytest.mark.parametrize("masked", [4990, 5000])
def test_masked_tokens_come_last(masked: int) -> None:
    row = np.random.default_rng(0).standard_normal((1, 5000)).astype(np.float32)
    row[0, :masked] = -np.inf
    assert by_sorting(row[0], 20) == _likeliest(row, 20)[0].tolist()


def test_log_probabilities_are_those_of_fp64() -> None:
    logits = (np.random.default_rng(1).standard_normal((4, 50_000)) * 8).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(log_softmax(logits), exact, rtol=2e-7, atol=1e-6)
