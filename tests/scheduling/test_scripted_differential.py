"""Every output is what its request would say alone: whatever the cache, the chunks, the pages, the overlap and the others are.

The tokens are a hash of the history as the device reads it back through its page tables, so that one wrong, stale, lost or
repeated page or token changes everything behind it.
"""

import functools
from random import Random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.text_scheduler import Admit
from layered_llm.scheduling.policy import AdmissionOrder
from support.scheduling_engine import Engine, all_alone, engine_limits, random_workload, scripted
from support.scheduling_rig import ChoiceKey, policy

ROOMY = engine_limits(pages=512, page_size=4)
TINY = engine_limits(pages=26, page_size=4)


@functools.cache
def reference(seed: int) -> tuple[list[Admit], dict[ChoiceKey, list[int]]]:
    workload = random_workload(seed)
    return workload, all_alone(workload)


def outputs(engine: Engine, workload: list[Admit]) -> dict[ChoiceKey, list[int]]:
    for message in workload:
        engine.admit(message)
    return engine.run()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_pages_and_overlap(seed: int, in_flight: int, page_size: int) -> None:
    workload, expected = reference(seed)
    engine = scripted(engine_limits(pages=2048 // page_size, page_size=page_size), policy(in_flight=in_flight))

    assert expected == outputs(engine, workload)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("chunk_tokens", [1, 2, 5, 16, 4096])
def test_chunks(chunk_tokens: int, cache: bool) -> None:
    workload, expected = reference(1)

    assert expected == outputs(scripted(ROOMY, policy(budget=chunk_tokens, cache=cache)), workload)


@pytest.mark.parametrize("pages", [26, 512])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_requests_that_go_on_where_they_were(in_flight: int, pages: int) -> None:
    workload, expected = reference(4)
    chance = Random(4)
    engine = scripted(engine_limits(pages=pages, page_size=4), policy(in_flight=in_flight))

    for message in workload:
        said = [expected[message.request, choice] for choice in range(message.choices)]
        known = tuple(pack_i32(tokens[: chance.randrange(len(tokens))]) for tokens in said)
        engine.admit(attrs.evolve(message, output_ids=known))

    assert expected == engine.run()


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_warm_cache(in_flight: int) -> None:
    workload, expected = reference(2)
    engine = scripted(ROOMY, policy(in_flight=in_flight))
    assert expected == outputs(engine, workload)
    cold = engine.scheduler.statistics()
    engine.forget()

    assert expected == outputs(engine, workload)

    warm = engine.scheduler.statistics()
    assert warm.counters.prefix_hit_tokens > 2 * cold.counters.prefix_hit_tokens
    assert warm.counters.prefill_tokens - cold.counters.prefill_tokens < cold.counters.prefill_tokens / 2


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("running", [1, 16])
def test_a_cache_that_is_evicted_all_the_time(in_flight: int, running: int) -> None:
    engine = scripted(TINY, policy(in_flight=in_flight, running=running))
    for seed in range(3):
        workload, expected = reference(seed)

        assert expected == outputs(engine, workload)
        engine.forget()

    assert engine.scheduler.statistics().pages_evicted > 100


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("budget", [3, 7, 64])
def test_preemption(in_flight: int, cache: bool, budget: int) -> None:
    workload = random_workload(7, most_prompt=12, most_output=60)
    expected = all_alone(workload)
    engine = scripted(TINY, policy(in_flight=in_flight, cache=cache, budget=budget))

    assert expected == outputs(engine, workload)

    assert engine.scheduler.statistics().counters.preemptions > 0


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    page_size = draw(st.sampled_from([1, 2, 4, 16]))
    pages = -(-draw(st.sampled_from([96, 128, 400])) // page_size)
    bounds = policy(
        budget=draw(st.sampled_from([1, 3, 8, 33, 512])),
        running=draw(st.integers(1, 16)),
        in_flight=draw(st.integers(1, 2)),
        cache=draw(st.booleans()),
        order=draw(st.sampled_from(AdmissionOrder)),
        overtakes=draw(st.integers(0, 3)),
    )
    return scripted(engine_limits(pages=pages, page_size=page_size, slots=draw(st.integers(1, 16))), bounds)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(engine=engines(), seed=st.integers(0, 5), chance=st.integers(0, 1_000).map(Random))
def test_any_engine_any_arrival_any_abort(engine: Engine, seed: int, chance: Random) -> None:
    workload, expected = reference(seed)
    aborted: set[int] = set()
    for message in workload:
        placement = attrs.evolve(message.placement, tenant=chance.choice(["", "a"]), priority=chance.randrange(2))
        engine.admit(attrs.evolve(message, placement=placement))
        for _ in range(chance.choice([0, 0, 1, 6])):
            engine.step()
        if chance.random() < 0.1:
            aborted.add(chance.randrange(message.request + 1))
            engine.abort(max(aborted))

    said = engine.run()

    for key, reason in engine.reasons.items():
        if reason is FinishReason.ABORT:
            assert key[0] in aborted
            assert expected[key][: len(said[key])] == said[key]
        else:
            assert expected[key] == said[key]
