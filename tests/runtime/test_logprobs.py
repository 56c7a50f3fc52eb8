import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.cpu.cpu_device import CpuDevice
from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from layered_llm.runtime.device.host_slots import SampleRow
from layered_llm.runtime.sampling.logprobs import log_softmax, raw_logprobs
from support.logprobs import Pairs, pairs_of
from support.runtime_checkpoints import make_checkpoint, reference_logits
from support.runtime_driver import Driver, greedy, open_slot, sampling
from support.runtime_options import make_options

LOGITS = torch.log(torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.25, 0.25, 0.5]]))


def told(logits: torch.Tensor, params: Sequence[TokenSampling], token_ids: Sequence[int]) -> list[Pairs]:
    rows = [SampleRow(sampling=each, choice=0, output_position=0) for each in params]
    raw = raw_logprobs(logits.numpy(), rows)
    return pairs_of(None if raw is None else raw.columns(np.array(token_ids, np.int32)))


def rounded(pairs: Pairs) -> Pairs:
    return [(token, round(math.exp(logprob), 5)) for token, logprob in pairs]


def test_nothing_is_computed_where_no_row_wants_any() -> None:
    assert raw_logprobs(LOGITS.numpy(), [SampleRow(sampling=greedy(), choice=0, output_position=0)] * 3) is None


def test_each_row_gets_what_it_wants_behind_the_sampled_tokens_own() -> None:
    params = [sampling(logprobs=2), greedy(), sampling(logprobs=0)]
    first, second, third = told(LOGITS, params, [0, 0, 2])
    assert [(0, 0.1), (1, 0.6), (2, 0.3)] == rounded(first)
    assert [] == second
    assert [(2, 0.5)] == rounded(third)


def test_the_sampled_token_among_the_likeliest_has_the_same_number_twice() -> None:
    ((sampled, *top),) = told(LOGITS[:1], [sampling(logprobs=2)], [2])
    assert sampled == top[1]


def test_more_than_the_vocabulary_are_all_of_it() -> None:
    ((_, *top),) = told(LOGITS[:1], [sampling(logprobs=20)], [2])
    assert [1, 2, 0] == [token for token, _ in top]


def test_an_excluded_token_has_minus_infinity() -> None:
    logits = torch.tensor([[1.0, -torch.inf]])
    assert [[(1, -math.inf), (0, 0.0), (1, -math.inf)]] == told(logits, [sampling(logprobs=2)], [1])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("tiny")
    return directory, make_checkpoint(directory)


def open_tiny(tiny: tuple[Path, Any]) -> CpuDevice:
    return open_cpu_device(make_options(tiny[0], num_pages=256), now_us=lambda: 0)


def run(
    device: CpuDevice, prompts: Sequence[list[int]], params: Sequence[TokenSampling], output_tokens: int
) -> list[list[Pairs]]:
    """The entries of each prompt's tokens."""
    driver = Driver(device, 7)
    for slot, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        driver.add(open_slot(slot, prompt, params=each), output_tokens=output_tokens)
    driver.run()
    return [driver.logprobs[slot] for slot in range(len(prompts))]


PROMPTS = [[5, 9, 30, 7], [3], [100, 4, 4, 77, 20, 11, 90, 3, 6, 15]]


@pytest.mark.parametrize("together", [True, False])
def test_output_logprobs_equal_those_of_transformers(together: bool, tiny: tuple[Path, Any]) -> None:
    params = [greedy(), sampling(seed=3), sampling(seed=4, temperature=1.6, top_k=20, presence_penalty=1.0, biases={9: 4.0})]
    params = [attrs.evolve(each, logprobs=5) for each in params]
    if together:
        outputs = run(open_tiny(tiny), PROMPTS, params, 16)
    else:
        outputs = [run(open_tiny(tiny), [prompt], [each], 16)[0] for prompt, each in zip(PROMPTS, params, strict=True)]
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        token_ids = [pairs[0][0] for pairs in output]
        expected = reference_logits(tiny[1], prompt + token_ids[:-1])[len(prompt) - 1 :].log_softmax(dim=-1)
        for pairs, reference in zip(output, expected, strict=True):
            assert [logprob for _, logprob in pairs] == pytest.approx([reference[token].item() for token, _ in pairs], abs=1e-4)
            assert [logprob for _, logprob in pairs[1:]] == pytest.approx(reference.topk(5).values.tolist(), abs=1e-4)


def test_a_choice_that_wants_none_has_none_beside_one_that_does(tiny: tuple[Path, Any]) -> None:
    first, second = run(open_tiny(tiny), PROMPTS[:2], [greedy(), sampling(temperature=0.0, logprobs=1)], 3)
    assert [[], [], []] == first
    assert [2, 2, 2] == [len(pairs) for pairs in second]


@pytest.mark.parametrize("chunk_tokens", [1, 4, 1000])
def test_prompt_logprobs_equal_those_of_transformers_however_the_prompt_is_cut(
    chunk_tokens: int, tiny: tuple[Path, Any]
) -> None:
    driver = Driver(open_tiny(tiny), chunk_tokens)
    for slot, prompt in enumerate(PROMPTS):
        params = greedy() if slot == 0 else sampling(temperature=0.0, prompt_logprobs=slot)
        driver.add(open_slot(slot, prompt, params=params), output_tokens=3)
    driver.run()
    assert [] == driver.prompt_logprobs[0]
    for slot, prompt in list(enumerate(PROMPTS))[1:]:
        told = driver.prompt_logprobs[slot]
        assert prompt == [pairs[0][0] for pairs in told]
        assert [(prompt[0], 0.0)] == told[0]
        for pairs, reference in zip(told[1:], reference_logits(tiny[1], prompt).log_softmax(dim=-1), strict=False):
            assert [logprob for _, logprob in pairs] == pytest.approx([reference[token].item() for token, _ in pairs], abs=1e-4)
            assert [logprob for _, logprob in pairs[1:]] == pytest.approx(reference.topk(slot).values.tolist(), abs=1e-4)


def test_a_prompt_longer_than_a_block_of_logits(tiny: tuple[Path, Any]) -> None:
    prompt = [3 + place % 100 for place in range(200)]
    driver = Driver(open_tiny(tiny), 1000)
    driver.add(open_slot(0, prompt, params=sampling(prompt_logprobs=0)), output_tokens=1)
    driver.run()
    reference = reference_logits(tiny[1], prompt).log_softmax(dim=-1)
    expected = [reference[place - 1, prompt[place]].item() for place in range(1, 200)]
    assert expected == pytest.approx([pairs[0][1] for pairs in driver.prompt_logprobs[0][1:]], abs=1e-4)


def test_a_prompt_that_was_told_is_not_told_again(tiny: tuple[Path, Any]) -> None:
    driver = Driver(open_tiny(tiny), 3)
    driver.add(open_slot(0, PROMPTS[2], [4, 5], params=sampling(prompt_logprobs=1)), output_tokens=2)
    driver.run()
    assert {} == driver.prompt_logprobs


@pytest.mark.parametrize(("chunk_tokens", "top"), [(1, 0), (4, 2), (1000, 0)])
def test_every_prompt_token_has_its_true_rank(chunk_tokens: int, top: int, tiny: tuple[Path, Any]) -> None:
    driver = Driver(open_tiny(tiny), chunk_tokens)
    driver.add(open_slot(0, PROMPTS[2], params=sampling(prompt_logprobs=top)), output_tokens=1)
    driver.run()
    reference = reference_logits(tiny[1], PROMPTS[2])
    ranks = [int((logits >= logits[token]).sum()) for logits, token in zip(reference[:-1], PROMPTS[2][1:], strict=True)]
    assert [0, *ranks] == driver.prompt_ranks[0]
    assert max(ranks) > 20


def test_a_logit_that_is_too_far_below_the_largest_is_impossible_and_nothing_else() -> None:
    largest = np.finfo(np.float32).max
    assert [0.0, -np.inf] == log_softmax(np.array([[largest, -largest]], np.float32))[0].tolist()
