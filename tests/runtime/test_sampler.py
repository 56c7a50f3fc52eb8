from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.device.host_slots import SampleRow, seen_tokens
from layered_llm.runtime.sampling import sampler
from layered_llm.runtime.sampling.philox import uniforms
from layered_llm.runtime.sampling.sampler import best_tokens
from support.runtime_driver import greedy, sampling


def sample_tokens(logits: torch.Tensor, rows: Sequence[SampleRow]) -> NDArray[np.int32]:
    """Of rows none of which fails."""
    token_ids, failed = sampler.sample_tokens(logits.numpy(), rows)
    assert [] == failed
    return token_ids


def row(params: TokenSampling, *, position: int = 0, choice: int = 0) -> SampleRow:
    return SampleRow(sampling=params, choice=choice, output_position=position)


def draw(logits: list[float], params: TokenSampling, count: int) -> list[int]:
    rows = [row(params, position=position) for position in range(count)]
    return [int(token) for token in sample_tokens(torch.tensor([logits] * count), rows)]


def chi_square(tokens: list[int], probabilities: list[float]) -> float:
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = np.array(probabilities) * len(tokens)
    return float(((counts - expected) ** 2 / expected).sum())


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert [2, 0] == sample_tokens(torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 1.0]]), [row(greedy())] * 2).tolist()


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_finite_maximum_fails_and_no_other(fault: float) -> None:
    logits = np.zeros((3, 100), np.float32)
    logits[2, 7] = 1.0
    logits[1, 50:] = fault
    logits[1, :50] = -np.inf if fault < 0 else 1e30
    token_ids, failed = best_tokens(logits)
    assert ([0, 0, 7], [1]) == (token_ids.tolist(), failed)


@pytest.mark.parametrize("columns", [1, 7, 131, 49152])
def test_the_best_token_is_torchs(columns: int) -> None:
    """Among few values, so that most rows have ties."""
    logits = np.random.default_rng(columns).integers(-3, 4, (40, columns)).astype(np.float32)
    assert torch.from_numpy(logits).max(dim=-1).indices.tolist() == best_tokens(logits)[0].tolist()


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert [1] * 20 == draw([1.0, 1.001, 0.0], sampling(temperature=1e-6), 20)


def test_tokens_are_drawn_by_their_probabilities() -> None:
    probabilities = [0.5, 0.05, 0.3, 0.15]
    tokens = draw(np.log(probabilities).tolist(), sampling(seed=3), 5000)
    assert 16.3 > chi_square(tokens, probabilities), "3 degrees of freedom: one in a thousand lies above"


def test_temperature_flattens_the_distribution() -> None:
    weights = np.sqrt([0.5, 0.05, 0.3, 0.15])
    tokens = draw(np.log([0.5, 0.05, 0.3, 0.15]).tolist(), sampling(seed=4, temperature=2.0), 5000)
    assert 16.3 > chi_square(tokens, (weights / weights.sum()).tolist())


def test_top_k_keeps_the_k_likeliest_in_their_proportions() -> None:
    tokens = draw(np.log([0.1, 0.5, 0.3, 0.1]).tolist(), sampling(seed=5, top_k=2), 5000)
    assert {1, 2} == set(tokens)
    assert 10.8 > chi_square([token - 1 for token in tokens], [0.625, 0.375])


def test_top_p_keeps_the_fewest_tokens_that_reach_the_share() -> None:
    tokens = draw(np.log([0.05, 0.5, 0.3, 0.15]).tolist(), sampling(seed=6, top_p=0.81), 2000)
    assert {1, 2, 3} == set(tokens)


def test_top_p_applies_to_what_top_k_left() -> None:
    """Of 0.4, 0.3, 0.2, 0.1 top-k 2 leaves 4/7 and 3/7; the first alone reaches 0.55 of that, but not of the whole."""
    assert {0} == set(draw(np.log([0.4, 0.3, 0.2, 0.1]).tolist(), sampling(top_k=2, top_p=0.55), 200))


def test_temperature_comes_before_top_p() -> None:
    """Of 0.64, 0.32, 0.04 the first reaches 0.6; at temperature 2 it is only 0.5."""
    assert {0, 1} == set(draw(np.log([0.64, 0.32, 0.04]).tolist(), sampling(temperature=2.0, top_p=0.6), 200))


def test_ties_at_the_cut_are_kept() -> None:
    assert {0, 1, 2} == set(draw([1.0, 1.0, 1.0, 0.0], sampling(top_k=1), 200))


def test_top_k_of_the_whole_vocabulary_changes_nothing() -> None:
    logits = [0.3, 0.1, 0.7, 0.2]
    assert draw(logits, sampling(seed=8), 50) == draw(logits, sampling(seed=8, top_k=9), 50)


def test_a_flat_distribution_has_a_nucleus_of_more_tokens_than_are_looked_at_first() -> None:
    logits = torch.zeros(400, 4000)
    logits[:, :1000] = -1e-3
    rows = [row(sampling(seed=9, top_p=0.74), position=position) for position in range(400)]
    tokens = sample_tokens(logits, rows)
    assert tokens.min() >= 1000
    assert len(set(tokens.tolist())) > 300


def drawn_by_sorting(logits: np.ndarray, params: TokenSampling, number: float) -> int:
    """The definition: every cut by a whole sort, and one whole cumulative sum."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / params.temperature)
    if params.top_n_sigma > 0:
        finite = [float(score) for score in logits if score != -np.inf]
        mean = sum(finite) / len(finite)
        deviation = (sum((score - mean) ** 2 for score in finite) / len(finite)) ** 0.5
        weights[logits < max(finite) - params.top_n_sigma * deviation] = 0
    weights[weights < params.min_p] = 0
    if 0 < params.top_k < len(weights):
        weights[weights < np.sort(weights)[-params.top_k]] = 0
    if params.top_p < 1:
        falling = np.sort(weights)[::-1]
        weights[weights < falling[np.searchsorted(falling.cumsum(), params.top_p * weights.sum())]] = 0
    cumulative = weights.cumsum()
    return int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))


@pytest.mark.parametrize("columns", [1, 255, 256, 257, 5003])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize(
    "cuts",
    [
        {},
        {"top_k": 3},
        {"top_k": 700},
        {"top_p": 0.4},
        {"top_p": 0.9999999},
        {"min_p": 0.2},
        {"min_p": 1e-9, "top_k": 300, "top_p": 0.9},
        {"top_n_sigma": 1.0},
        {"top_n_sigma": 2.5, "top_p": 0.9},
    ],
)
def test_a_token_is_drawn_as_if_everything_were_sorted(columns: int, spread: float, cuts: dict[str, Any]) -> None:
    logits = (np.random.default_rng(columns).standard_normal((40, columns)) * spread).astype(np.float32)
    logits[:, 1::3] = -np.inf
    rows = [row(sampling(seed=5, temperature=0.8, **cuts), position=position) for position in range(40)]
    numbers = uniforms([5] * 40, [0] * 40, list(range(40)))
    expected = [drawn_by_sorting(logits[at], rows[at].sampling, numbers[at]) for at in range(40)]

    assert expected == sample_tokens(torch.from_numpy(logits.copy()), rows).tolist()


def test_end_ids_wait_for_min_tokens() -> None:
    params = greedy(min_tokens=2, end_ids=(1, 3, 99))
    logits = torch.tensor([[0.0, 9.0, 1.0, 8.0]] * 3)
    assert [2, 2, 1] == sample_tokens(logits, [row(params, position=position) for position in range(3)]).tolist()


def test_end_ids_wait_for_min_tokens_when_drawn() -> None:
    params = sampling(min_tokens=100, end_ids=(1,), top_k=3)
    assert {0, 2, 3} == set(draw([0.0, 9.0, 0.1, 0.2], params, 100))


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3000, generator=generator) * 3
    rows = [
        row(sampling(seed=1, temperature=0.7), position=3),
        row(greedy()),
        row(sampling(seed=1, top_p=0.9), position=3),
        row(sampling(seed=2, top_k=50, top_p=0.5), position=4),
        row(sampling(seed=2, top_k=2000), position=5, choice=2),
        row(sampling(seed=3, temperature=2.0, top_p=0.99), position=9),
    ]
    together = sample_tokens(logits.clone(), rows).tolist()
    assert [sample_tokens(logits[k : k + 1].clone(), rows[k : k + 1])[0] for k in range(6)] == together


def test_choices_and_seeds_draw_apart() -> None:
    logits = torch.zeros(3, 1000)
    rows = [row(sampling(seed=1)), row(sampling(seed=1), choice=1), row(sampling(seed=2))]
    assert 3 == len(set(sample_tokens(logits, rows).tolist()))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "params",
    [
        greedy(),
        sampling(),
        greedy(min_tokens=1, end_ids=(1,)),
        sampling(presence_penalty=1.0, repetition_penalty=2.0),
        sampling(biases={1: -100.0}),
    ],
)
def test_a_row_whose_logits_are_not_finite_fails_whatever_is_done_to_them(bad: float, params: TokenSampling) -> None:
    seen = seen_tokens(params, np.array([1], np.int32), np.array([1], np.int32))
    rows = [attrs.evolve(row(params), seen=seen), row(greedy())]
    token_ids, failed = sampler.sample_tokens(np.array([[0.0, bad, 1.0], [0.0, 0.0, 1.0]], np.float32), rows)
    assert ([0, 2], [0]) == (token_ids.tolist(), failed)


def test_masking_everything_fails_the_row() -> None:
    _, failed = sampler.sample_tokens(np.zeros((1, 2), np.float32), [row(greedy(min_tokens=1, end_ids=(0, 1)))])
    assert [0] == failed


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_top_n_sigma_keeps_the_same_tokens_at_any_temperature(temperature: float) -> None:
    logits = [4.0, 3.0, 1.0, -4.0]  # deviation 3.08, so that half of it ends between 3 and 1

    assert {0, 1} == set(draw(logits, sampling(temperature=temperature, top_n_sigma=0.5), 2000))
