"""The default model in fp32 says the same whatever the cache, the chunks, the pages, the overlap and the company are.

The tokens are those of `transformers`. None of them is a near-tie there (`golden/make_reference.py` refuses those), so each has
to be equal. The cases are a few of the full product, in which each two values of two axes meet.
"""

from collections.abc import Iterator
from itertools import product

import pytest

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.text_scheduler import Admit, TokenSampling
from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from layered_llm.runtime.device.device import Device
from support.golden import default_checkpoint, golden
from support.output_matrix import CROWD, Cache, Case, Company, all_cases, covering, play
from support.runtime_options import make_options

CACHES = (Cache.COLD, Cache.WARM, Cache.PARTLY_EVICTED)
POOL_TOKENS = 1024
CROWDED_TOKENS = 48
GREEDY = TokenSampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, min_tokens=0, end_ids=())
OUTPUT_TOKENS = {Company.ALONE: 3, Company.CROWD: 3, Company.PREEMPTED: 14}
BEGINNINGS = {
    Company.ALONE: [("list", 2), ("story", 7)],
    Company.CROWD: list(product(("story", "arabic", "english", "one-word"), (7, 4, 2, 0))),
    Company.PREEMPTED: list(product(("english", "arabic"), (4, 2, 0))),
}
"""Reference prompts, and how many tokens of its answer are given with each: some prompts begin others."""


def request(number: int, name: str, known: int, tokens: int) -> tuple[Admit, list[int]]:
    """What is asked, and the tokens that follow."""
    reference = golden(name)
    prompt = [*reference.prompt_ids, *reference.output_ids[:known]]
    message = Admit(request=RequestId(number), choices=1, prompt_ids=pack_i32(prompt), max_tokens=tokens, sampling=GREEDY)
    return message, list(reference.output_ids[known : known + tokens])


def devices() -> Iterator[tuple[int, Device]]:
    """One for each page size: the model is read once for all cases of it."""
    for page_size in (1, 4, 16):
        options = make_options(
            default_checkpoint(), num_pages=POOL_TOKENS // page_size, page_size_tokens=page_size, max_slots=CROWD
        )
        yield page_size, open_cpu_device(options, now_us=lambda: 0)


@pytest.fixture(scope="module")
def by_page_size() -> dict[int, Device]:
    return dict(devices())


def is_quick(case: Case) -> bool:
    """A crowd in steps of one token takes a hundred steps and more, so it is asked once and not twice."""
    return case.chunk_tokens > 1 or case.company is Company.ALONE or case.cache is Cache.COLD


@pytest.mark.parametrize("case", covering(list(filter(is_quick, all_cases(CACHES)))), ids=str)
def test_every_request_says_what_transformers_says(case: Case, by_page_size: dict[int, Device]) -> None:
    tokens = OUTPUT_TOKENS[case.company]
    asked = [request(number, *beginning, tokens) for number, beginning in enumerate(BEGINNINGS[case.company])]
    expected = {(message.request, 0): tokens for message, tokens in asked}

    said = play(case, by_page_size[case.page_size], [message for message, _ in asked], crowded_tokens=CROWDED_TOKENS)

    assert expected == said
