"""The full product of cache, chunk, page size, overlap and company, on a device whose tokens are a hash of all before them."""

import functools

import pytest

from layered_llm.domain.messages.text_scheduler import Admit
from support.output_matrix import CROWD, Cache, Case, all_cases, covering, play
from support.scheduling_engine import all_alone, engine_limits, random_workload, scripted_device
from support.scheduling_rig import ChoiceKey

CROWDED_TOKENS = 80


@functools.cache
def workload(seed: int) -> tuple[list[Admit], dict[ChoiceKey, list[int]]]:
    """Long outputs after short prompts, so that they outgrow the pages that they started with."""
    messages = random_workload(seed, requests=CROWD, most_prompt=24, most_output=40)
    return messages, all_alone(messages)


@pytest.mark.parametrize("case", all_cases(Cache), ids=str)
def test_every_request_says_what_it_says_alone(case: Case) -> None:
    seed = all_cases(Cache).index(case) % 2
    messages, expected = workload(seed)
    device = scripted_device(engine_limits(pages=2048 // case.page_size, page_size=case.page_size))

    assert expected == play(case, device, messages, crowded_tokens=CROWDED_TOKENS)


def test_the_cases_that_cover_all_pairs_are_few_and_do() -> None:
    cases = all_cases(Cache)
    few = covering(cases)

    assert 12 <= len(few) <= 20
    assert {(case.cache, case.page_size) for case in cases} == {(case.cache, case.page_size) for case in few}
    assert {(case.chunk_tokens, case.company) for case in cases} == {(case.chunk_tokens, case.company) for case in few}
