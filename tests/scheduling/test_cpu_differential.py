"""Greedy outputs of a real, tiny model in fp32 depend on neither the cache nor preemption nor the others."""

from pathlib import Path
from random import Random

import pytest

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.text_scheduler import Admit, TokenSampling
from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from support.runtime_checkpoints import make_checkpoint
from support.runtime_options import make_options
from support.scheduling_engine import Engine
from support.scheduling_rig import ChoiceKey, policy

VOCABULARY = 128


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_checkpoint(directory)
    return directory


def engine(
    checkpoint: Path, *, pages: int, cache: bool = True, running: int = 8, in_flight: int = 1, budget: int = 32
) -> Engine:
    device = open_cpu_device(make_options(checkpoint, num_pages=pages), now_us=lambda: 0)
    return Engine(device, policy(cache=cache, running=running, in_flight=in_flight, budget=budget))


def workload() -> list[Admit]:
    random = Random(3)
    texts = [[random.randrange(3, VOCABULARY) for _ in range(24)] for _ in range(2)]
    prompts = [[*random.choice(texts)[: random.randint(0, 24)], random.randrange(3, VOCABULARY)] for _ in range(10)]
    sampling = TokenSampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, min_tokens=0, end_ids=())
    return [
        Admit(request=RequestId(request), choices=1, prompt_ids=pack_i32(prompt), max_tokens=16, sampling=sampling)
        for request, prompt in enumerate(prompts)
    ]


def outputs(engine: Engine) -> dict[ChoiceKey, list[int]]:
    for message in workload():
        engine.admit(message)
    return engine.run()


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> dict[ChoiceKey, list[int]]:
    return outputs(engine(checkpoint, pages=64, cache=False, running=1))


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_cold_and_a_warm_cache(checkpoint: Path, expected: dict[ChoiceKey, list[int]], in_flight: int) -> None:
    one = engine(checkpoint, pages=128, in_flight=in_flight)
    assert expected == outputs(one)
    one.forget()

    assert expected == outputs(one)
    assert one.scheduler.statistics().counters.prefix_hit_tokens > 0


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("budget", [5, 64])
def test_preemption(checkpoint: Path, expected: dict[ChoiceKey, list[int]], cache: bool, budget: int) -> None:
    one = engine(checkpoint, pages=16, cache=cache, budget=budget)

    assert expected == outputs(one)
    assert one.scheduler.statistics().counters.preemptions > 0


@pytest.mark.parametrize("shuffle", [None, 1, 2])
def test_d14_alone_among_others_and_in_another_order(
    checkpoint: Path, expected: dict[ChoiceKey, list[int]], shuffle: int | None
) -> None:
    """`expected` is what each says alone."""
    messages = workload()
    if shuffle is not None:
        Random(shuffle).shuffle(messages)
    one = engine(checkpoint, pages=256, cache=False, running=8)
    for message in messages:
        one.admit(message)

    assert expected == one.run()
