import random
from collections import Counter

import pytest
import torch
from transformers import MinPLogitsWarper, NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.device.host_slots import SampleRow, SeenTokens, tokens_looked_at
from layered_llm.runtime.sampling.logit_adjustments import adjust_logits
from layered_llm.runtime.sampling.sampler import sample_tokens
from support.runtime_driver import greedy, sampling

VOCABULARY = 200
GENERATOR = torch.Generator().manual_seed(3)
LOGITS = torch.randn(4, VOCABULARY, generator=GENERATOR) * 4
RNG = random.Random(5)
PROMPT = [RNG.randrange(VOCABULARY) for _ in range(30)]
OUTPUT = [RNG.randrange(VOCABULARY // 4) for _ in range(40)]


def row(params: TokenSampling, *, prompt: list[int] = PROMPT, output: list[int] = OUTPUT) -> SampleRow:
    return SampleRow(sampling=params, choice=0, output_position=len(output), seen=SeenTokens(prompt, output))


def adjusted(logits: torch.Tensor, *rows: SampleRow) -> torch.Tensor:
    logits = logits.clone()
    adjust_logits(logits.numpy(), rows)
    return logits


@pytest.mark.parametrize("penalty", [0.5, 1.05, 1.3, 2.0])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT + OUTPUT]), LOGITS[:1].clone())
    torch.testing.assert_close(adjusted(LOGITS[:1], row(sampling(repetition_penalty=penalty))), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("presence", "frequency"), [(0.7, 0.0), (0.0, 0.3), (-1.5, 2.0), (2.0, -2.0)])
def test_presence_and_frequency_penalties_follow_openais_formula(presence: float, frequency: float) -> None:
    expected = LOGITS[:1].clone()
    for token, count in Counter(OUTPUT).items():
        expected[0, token] -= frequency * count + presence
    params = sampling(presence_penalty=presence, frequency_penalty=frequency)
    torch.testing.assert_close(adjusted(LOGITS[:1], row(params)), expected, rtol=1e-6, atol=1e-6)


def test_the_repetition_penalty_comes_before_the_others() -> None:
    params = sampling(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.5)
    logits = torch.tensor([[4.0, -4.0, 4.0, 1.0]])
    assert [[4.0 / 2 - 2.0, -4.0 * 2 - 1.5, 4.0 / 2, 1.0]] == adjusted(
        logits, row(params, prompt=[2], output=[0, 1, 0])
    ).tolist()


def test_a_bias_is_added_before_penalties() -> None:
    params = sampling(repetition_penalty=2.0, biases={1: -6.0, 2: 0.5})
    assert [[1.0, -10.0, 1.5]] == adjusted(torch.ones(1, 3), row(params, prompt=[1], output=[])).tolist()


def test_a_mask_is_not_lifted_by_a_bias() -> None:
    params = greedy(min_tokens=3, end_ids=(1,))
    biased = sampling(temperature=0.0, min_tokens=3, end_ids=(1,), biases={1: 100.0}, presence_penalty=-2.0)
    logits = torch.tensor([[3.0, 5.0, 1.0]] * 2)
    rows = [row(params, prompt=[], output=[]), row(biased, prompt=[], output=[1, 1])]
    assert [0, 0] == sample_tokens(logits.numpy(), rows)[0].tolist()


def test_rows_are_adjusted_each_by_its_own_parameters() -> None:
    rows = [
        row(sampling(repetition_penalty=1.5)),
        SampleRow(sampling=greedy(), choice=0, output_position=0),
        row(sampling(frequency_penalty=1.0), prompt=[1, 2], output=[3]),
        row(sampling(biases={5: 7.0})),
    ]
    together = adjusted(LOGITS, *rows)
    assert torch.equal(LOGITS[1], together[1])
    assert all(torch.equal(adjusted(LOGITS[k : k + 1], rows[k])[0], together[k]) for k in range(4))


@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e-40, 1000.0])
def test_no_penalty_makes_a_logit_infinite(penalty: float) -> None:
    logits = torch.tensor([[0.0, 3.0, -3e38, 1.0]])
    assert adjusted(logits, row(sampling(repetition_penalty=penalty), prompt=[0, 1, 2], output=[])).isfinite().all()


@pytest.mark.parametrize("min_p", [0.1, 0.5, 1.0])
def test_min_p_keeps_what_transformers_keeps(min_p: float) -> None:
    temperature = 1.7
    logits = LOGITS[0, :30] / 3
    kept = MinPLogitsWarper(min_p)(torch.tensor([[0]]), (logits / temperature)[None])[0].isfinite().nonzero()[:, 0].tolist()
    rows = [row(sampling(seed=seed, temperature=temperature, min_p=min_p), prompt=[], output=[]) for seed in range(1000)]
    assert set(kept) == set(sample_tokens(logits.repeat(len(rows), 1).numpy(), rows)[0].tolist())


def test_min_p_looks_at_penalized_logits() -> None:
    params = sampling(min_p=0.5, biases={0: -3.0})
    rows = [SampleRow(sampling=params, choice=0, output_position=position) for position in range(200)]
    assert {1, 2} == set(sample_tokens(torch.tensor([[3.0, 1.0, 0.9]] * 200).numpy(), rows)[0].tolist())


def restricted(params: TokenSampling, output: list[int]) -> SampleRow:
    """A row that is shown no more of its output than its bad words need."""
    looked_at = tokens_looked_at(params)
    recent = tuple(output[max(len(output) - looked_at, 0) :])
    return SampleRow(sampling=params, choice=0, output_position=len(output), recent=recent)


@pytest.mark.parametrize("output", [[], [5], [5, 6], [6, 5], [9, 9, 5, 6], [5, 6, 5]])
def test_bad_words_are_those_of_transformers_over_the_output(output: list[int]) -> None:
    words = [[3], [5, 7], [5, 6, 8], [6, 5, 6, 1], [5, 6, 5, 6, 2]]
    params = greedy_with(bad_words=words)
    expected = NoBadWordsLogitsProcessor(words)(torch.tensor([output], dtype=torch.long), LOGITS[:1].clone())

    assert torch.equal(expected, adjusted(LOGITS[:1], restricted(params, output)))


def test_only_allowed_tokens_keep_their_logits() -> None:
    params = sampling(allowed_ids=pack_i32([7, 3, 7]))

    expected = torch.full((1, VOCABULARY), -torch.inf)
    expected[0, [3, 7]] = LOGITS[0, [3, 7]]
    assert torch.equal(expected, adjusted(LOGITS[:1], restricted(params, [])))


def test_no_bias_or_penalty_lifts_what_is_not_allowed_or_is_bad() -> None:
    params = sampling(
        temperature=0.0,
        biases={0: 100.0, 1: 100.0},
        presence_penalty=-2.0,
        allowed_ids=pack_i32([1, 2, 3]),
        bad_words=(pack_i32([1]),),
    )
    logits = torch.tensor([[9.0, 8.0, 1.0, 2.0]])

    assert [3] == sample_tokens(logits.numpy(), [row(params, prompt=[], output=[0, 1, 1])])[0].tolist()


def test_bad_words_give_way_where_they_leave_no_token() -> None:
    params = greedy_with(bad_words=[[1], [2]], allowed_ids=pack_i32([1, 2]))

    assert [1] == sample_tokens(torch.tensor([[9.0, 3.0, 2.0]]).numpy(), [restricted(params, [])])[0].tolist()


def greedy_with(*, bad_words: list[list[int]], allowed_ids: bytes = b"") -> TokenSampling:
    return sampling(temperature=0.0, bad_words=tuple(map(pack_i32, bad_words)), allowed_ids=allowed_ids)
