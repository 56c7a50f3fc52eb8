"""A row whose numbers are not finite fails alone: no other row's token changes, now or when its pages are used again."""

import math
import random
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from layered_llm.domain.columns import unpack_f32, unpack_i8, unpack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.cpu.cpu_device import CpuDevice
from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from support.runtime_checkpoints import make_checkpoint
from support.runtime_driver import Driver, execute, generate, greedy, make_step, open_slot, sampling
from support.runtime_options import make_options

POISON = 9
"""A token whose embedding is NaN."""
KERNELS = [("torch", "auto"), ("simd", "auto"), ("simd", "int8")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("poisoned")
    model = make_checkpoint(directory, head_dim=32)
    model.model.embed_tokens.weight.data[POISON] = torch.nan
    model.save_pretrained(directory)
    return directory


@pytest.fixture(params=KERNELS, ids="-".join)
def device(request: pytest.FixtureRequest, checkpoint: Path) -> CpuDevice:
    kernels, dtype = request.param
    return open_cpu_device(make_options(checkpoint, kernels=kernels, dtype=dtype), now_us=lambda: 0)


def prompts_of(*lengths: int) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(16, 128) for _ in range(length)] for length in lengths]


def failed(result: StepCompleted | None) -> dict[int, FinishReason]:
    assert result is not None
    codes = zip(unpack_i32(result.failed_rows), unpack_i8(result.failures), strict=True)
    return {row: FinishReason(code) for row, code in codes}


def failures_of(device: CpuDevice, prompts: list[list[int]], params: list[TokenSampling]) -> tuple[set[int], Driver]:
    """The rows that failed in any step of a run of `prompts`."""
    driver = Driver(device, 100)
    for slot, prompt in enumerate(prompts):
        driver.add(open_slot(slot, prompt, params=params[slot]), output_tokens=6)
    rows: set[int] = set()
    while driver._choices:
        driver.step()
        rows |= failed(driver.last).keys()
    return rows, driver


def test_only_the_row_with_the_poisoned_token_fails(device: CpuDevice) -> None:
    good, other = prompts_of(9, 5)
    rows, _ = failures_of(device, [good, [20, POISON, 30], other], [greedy()] * 3)
    assert {1} == rows


@pytest.mark.parametrize("chunk_tokens", [3, 100])
def test_greedy_output_beside_a_row_that_fails_is_what_it_is_alone(device: CpuDevice, chunk_tokens: int) -> None:
    good, other = prompts_of(9, 5)
    alone = [generate(device, [prompt], output_tokens=6)[0] for prompt in (good, other)]
    first, _, last = generate(device, [good, [20, POISON, 30], other], output_tokens=6, chunk_tokens=chunk_tokens)
    assert alone == [first, last]


def test_pages_of_a_row_that_failed_do_no_harm_to_who_has_them_next(device: CpuDevice) -> None:
    good, other = prompts_of(9, 2)
    alone = [generate(device, [prompt], output_tokens=6)[0] for prompt in (good, other)]
    generate(device, [[POISON] * 40], output_tokens=4)
    assert alone == generate(device, [good, other], output_tokens=6)


def test_a_token_sampled_before_the_fault_keeps_its_row_whole(device: CpuDevice) -> None:
    opening = open_slot(0, [20, 30])
    first = execute(device, make_step(1, opened=[opening], pages=[(0, 0, [0, 1])], rows=[(0, 0, 2, True)]))
    forced = open_slot(1, [20, 30], [POISON])
    second = execute(device, make_step(2, opened=[forced], pages=[(1, 0, [2])], rows=[(0, 2, 1, True), (1, 0, 3, True)]))
    assert ({}, {1: FinishReason.ERROR}) == (failed(first), failed(second))


@pytest.mark.parametrize("params", [sampling(seed=3), sampling(top_p=0.9, top_k=5), sampling(logprobs=3), greedy()])
def test_a_row_that_fails_beside_one_that_samples(device: CpuDevice, params: TokenSampling) -> None:
    (good,) = prompts_of(9)
    rows, driver = failures_of(device, [[20, POISON], good], [params, sampling(seed=5, logprobs=2)])
    assert ({0}, set(), 6) == (rows, {len(pairs) for pairs in driver.logprobs.get(0, [])} - {0}, len(driver.logprobs[1]))


def test_prompt_log_probabilities_of_a_poisoned_prompt_fail_the_row_of_their_chunk(device: CpuDevice) -> None:
    params = attrs.evolve(greedy(), prompt_logprobs=2)
    openings = [open_slot(0, [20, POISON, 30, 40, 50], params=params), open_slot(1, [20, 21, 22, 23, 24], params=params)]
    pages = [(0, 0, [0]), (1, 0, [1])]
    result = execute(device, make_step(1, opened=openings, pages=pages, rows=[(0, 0, 3, False), (1, 0, 3, False)]))
    assert result.prompt_logprobs is not None
    bad, good = result.prompt_logprobs
    told = [] if good is None else unpack_f32(good.logprobs).tolist()
    assert ({0: FinishReason.ERROR}, None, []) == (failed(result), bad, [value for value in told if math.isnan(value)])


@pytest.mark.parametrize("kernels", ["torch", "simd"])
@pytest.mark.parametrize("fault", [torch.nan, torch.inf])
def test_a_model_whose_weights_are_not_finite_fails_every_row_and_goes_on(tmp_path: Path, kernels: str, fault: float) -> None:
    model: Any = make_checkpoint(tmp_path)
    model.model.norm.weight.data[:] = fault
    model.save_pretrained(tmp_path)
    device = open_cpu_device(make_options(tmp_path, kernels=kernels), now_us=lambda: 0)
    openings = [open_slot(0, [20]), open_slot(1, [30])]
    pages, rows = [(0, 0, [0]), (1, 0, [1])], [(0, 0, 1, True), (1, 0, 1, True)]
    result = execute(device, make_step(1, opened=openings, pages=pages, rows=rows))
    assert dict.fromkeys(range(2), FinishReason.ERROR) == failed(result)
