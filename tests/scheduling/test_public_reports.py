"""Faults that other servers were reported for, each named after its kind."""

import pytest

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.verdicts import RefuseReason
from support.scheduling_device import Script, counting_script
from support.scheduling_rig import Rig, admit, limits, policy

END = 77


def ends_at_once(_seed: int, _choice: int, _position: int) -> int:
    return END


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("steps_before", [0, 1, 2])
@pytest.mark.parametrize(("tokens", "script"), [(3, None), (9, ends_at_once), (9, None)])
def test_a1_abort_between_launch_and_result_frees_once(
    in_flight: int, steps_before: int, tokens: int, script: Script | None
) -> None:
    """An abort frees the request, and the result of its step in flight, its last one too, frees it again (mini-sglang 111)."""
    rig = Rig(limits=limits(pages=8), policy=policy(in_flight=in_flight))
    if script is not None:
        rig.device.script = script
    rig.admit(admit(1, prompt=4, tokens=tokens, end_ids=(END,)))
    for _ in range(steps_before):
        rig.step()
    rig.launch()

    rig.abort(1)
    rig.abort(1)

    rig.run()
    rig.scheduler.flush_cache()
    assert 8 == rig.scheduler.statistics().pages_free


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a2_abort_with_a_prefill_in_flight_gives_its_pages_to_nobody_before_the_result(in_flight: int) -> None:
    """The pages of a prompt in flight are free while the prefix tree gets them too, and somebody else is given them."""
    rig = Rig(limits=limits(pages=8, page_size=4), policy=policy(budget=16, in_flight=in_flight))
    rig.admit(admit(1, prompt=28, tokens=4))
    rig.launch()
    rig.abort(1)
    rig.admit(admit(2, prompt=28, tokens=4))

    rig.launch()
    assert 1 == rig.scheduler.statistics().waiting_choices

    rig.run()
    assert FinishReason.LENGTH is rig.reason(2)


def test_a5_a_request_aborted_while_it_waits_is_never_run() -> None:
    """A client leaves while it is queued, and the server runs its request later (llama.cpp 13262)."""
    rig = Rig(policy=policy(running=1))
    for request in range(4):
        rig.admit(admit(request))
    rig.step()

    for request in (1, 2, 3):
        rig.abort(request)

    rig.run()
    assert [0] == [opened.sampling.seed for step in rig.device.steps for opened in step.opened]


def test_a6_an_abort_between_chunks_computes_no_further_chunk() -> None:
    """A client leaves during the prefill, and the whole prompt is computed first (ollama 11889)."""
    rig = Rig(limits=limits(pages=64), policy=policy(budget=8))
    rig.admit(admit(1, prompt=128))
    rig.launch()

    rig.abort(1)

    rig.run()
    assert 8 == sum(sum(unpack_i32(step.counts)) for step in rig.device.steps)


@pytest.mark.parametrize("steps_before", range(5))
def test_a10_an_abort_reaches_every_choice_and_no_record_stays(steps_before: int) -> None:
    """The abort of a request with several choices does not reach them, or its record is kept for ever (vllm 14512, 51629)."""
    rig = Rig(
        policy=policy(running=2), script=lambda _seed, choice, position: END if (choice, position) == (0, 1) else position
    )
    rig.admit(admit(1, tokens=9, choices=3, end_ids=(END,)))
    for _ in range(steps_before):
        rig.step()

    rig.abort(1)

    rig.run()
    assert 3 == len(rig.ended)
    assert FinishReason.ABORT is rig.reason(1, 2)


def test_a18_results_and_aborts_for_ended_requests_are_counted_and_harm_nobody() -> None:
    """A late result for a request that was removed raises, and takes the whole engine down (vllm 6586, LMCache 4185)."""
    rig = Rig()
    rig.admit(admit(1, tokens=9))
    rig.admit(admit(2, tokens=9))
    rig.launch()
    rig.abort(1)

    rig.finish()
    rig.abort(1)
    rig.abort(99)

    rig.run()
    figures = rig.scheduler.statistics()
    assert (1, 2, 1) == (figures.counters.aborts_handled, figures.counters.aborts_late, figures.counters.dropped_tokens)
    assert 9 == len(rig.outputs[2, 0])


@pytest.mark.parametrize("in_flight", [1, 2])
def test_d1_no_live_page_table_names_a_freed_page(in_flight: int) -> None:
    """The device compares each cell that a row reads with the row's own history, the rig its tables with the scheduler's."""
    rig = Rig(limits=limits(pages=24, page_size=1), policy=policy(in_flight=in_flight))
    for request in (1, 2):
        rig.admit(admit(request, prompt_ids=range(10), tokens=2))

    rig.run()

    assert 10 + 2 == rig.scheduler.statistics().pages_cached


def test_d1_same_and_different_prompts_at_once() -> None:
    rig = Rig(limits=limits(pages=48), policy=policy(in_flight=2))
    for request in range(16):
        own = [] if request % 2 else [100 + request]
        rig.admit(admit(request, prompt_ids=[*own, *range(10)], tokens=12))

    rig.run()

    assert {(FinishReason.LENGTH, 12)} == set(rig.ended.values())


def test_d2_a_prefix_that_runs_survives_a_full_pool() -> None:
    rig = Rig(limits=limits(pages=8, page_size=4))
    rig.admit(admit(1, prompt_ids=range(8), tokens=1))
    rig.run()
    rig.admit(admit(2, prompt_ids=range(9), tokens=7))
    rig.step()
    rig.admit(admit(3, prompt=12, tokens=4))

    rig.run()

    assert 8 == rig.cached[2, 0]
    assert {FinishReason.LENGTH} == {reason for reason, _ in rig.ended.values()}


def test_d5_admission_counts_in_pages_as_the_allocator_does() -> None:
    rig = Rig(limits=limits(pages=3, page_size=16))
    rig.admit(admit(1, prompt=17, tokens=1))
    rig.admit(admit(2, prompt=17, tokens=1))

    rig.step()

    assert (0, 1) == (rig.scheduler.statistics().running_choices, rig.scheduler.statistics().waiting_choices)
    rig.run()


def test_d6_a_request_larger_than_the_pool_is_refused_and_blocks_nobody() -> None:
    rig = Rig(limits=limits(pages=64, page_size=1, context=128))

    rig.admit(admit(1, prompt=80, tokens=8))
    rig.admit(admit(2, prompt=8, tokens=8))
    rig.run()

    assert [RefuseReason.NEVER_FITS] == [refused.reason for refused in rig.refused]
    assert FinishReason.LENGTH is rig.reason(2)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_d8_a_pool_too_small_for_all_loses_nobody(page_size: int) -> None:
    rig = Rig(limits=limits(pages=64 // page_size, page_size=page_size))
    for request in range(16):
        rig.admit(admit(request, prompt=4 + request, tokens=12))

    rig.run()

    assert {FinishReason.LENGTH} == {rig.reason(request) for request in range(16)}


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_d10_prompts_around_the_length_of_a_page(page_size: int) -> None:
    rig = Rig(limits=limits(pages=64, page_size=page_size))
    for request in range(1, 2 * page_size + 1):
        rig.admit(admit(request, prompt=request, tokens=3))

    rig.run()

    assert {FinishReason.LENGTH} == {reason for reason, _ in rig.ended.values()}


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_d9_no_page_is_counted_twice_after_any_prefix_came_again(page_size: int) -> None:
    rig = Rig(limits=limits(pages=128 // page_size, page_size=page_size))
    for request in range(24):
        rig.admit(admit(request, prompt_ids=[*range(request % 7 * 5), 100 + request % 3], tokens=1 + request % 5))
        rig.step()

    rig.run()

    figures = rig.scheduler.statistics()
    assert figures.pages_cached == rig.scheduler.flush_cache()
    assert 128 // page_size == rig.scheduler.statistics().pages_free


def test_d12_short_prompts_pass_one_of_64_chunks() -> None:
    budget = 32
    rig = Rig(limits=limits(pages=1024, page_size=4), policy=policy(budget=budget))
    rig.admit(admit(0, prompt=64 * budget, tokens=2))
    rig.step()
    for request in range(1, 11):
        rig.admit(admit(request, prompt=8, tokens=20))

    for _ in range(8):
        rig.step()

    assert all(rig.outputs[request, 0] for request in range(1, 11))
    assert 0 == len(rig.outputs[0, 0])


def test_d12_the_long_prompt_is_not_starved_by_short_ones() -> None:
    budget = 16
    rig = Rig(limits=limits(pages=1024, page_size=4), policy=policy(budget=budget))
    rig.admit(admit(0, prompt=64 * budget, tokens=1))

    steps = 0
    while not rig.outputs[0, 0]:
        steps += 1
        for one in range(2):
            rig.admit(admit(2 * steps + one, prompt=6, tokens=1))
        rig.step()

    assert steps <= 2 * 64 + 2


def test_d12_running_streams_get_a_token_with_every_chunk() -> None:
    rig = Rig(limits=limits(pages=1024), policy=policy(budget=16))
    rig.admit(admit(1, prompt=2, tokens=40))
    rig.step()
    rig.admit(admit(2, prompt=400, tokens=1))

    for expected in range(2, 12):
        rig.step()
        assert expected == len(rig.outputs[1, 0])


@pytest.mark.parametrize("others", [0, 7])
def test_d14_an_output_does_not_depend_on_the_others(others: int) -> None:
    rig = Rig(limits=limits(pages=24), policy=policy(budget=9))
    for request in range(1, 1 + others):
        rig.admit(admit(request, prompt_ids=range(request), tokens=10))
    rig.admit(admit(0, prompt_ids=range(12), tokens=10))

    rig.run()

    assert [counting_script(0, 0, position) for position in range(10)] == rig.outputs[0, 0]


def test_d15_a_slot_that_a_step_in_flight_reads_is_not_used_again() -> None:
    rig = Rig(limits=limits(slots=1), policy=policy(in_flight=2))
    rig.admit(admit(1, tokens=20))
    rig.launch()
    rig.launch()
    rig.abort(1)
    rig.admit(admit(2, tokens=2))

    rig.finish()
    step = rig.launch()

    assert step is not None
    assert () == step.opened
    rig.run()


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_d17_whoever_waits_with_an_empty_pool_is_started(page_size: int) -> None:
    rig = Rig(limits=limits(pages=4, page_size=page_size))
    for request in range(20):
        rig.admit(admit(request, prompt=3 * page_size, tokens=page_size))

    while not rig.scheduler.is_quiescent:
        rig.launch()
        figures = rig.scheduler.statistics()
        assert figures.running_choices or not figures.waiting_choices
        rig.finish()
        if figures.waiting_choices and not rig.scheduler.statistics().running_choices:
            assert 0 == rig.scheduler.statistics().pages_used
    rig.run()


def test_d18_only_the_shortfall_is_evicted() -> None:
    rig = Rig(limits=limits(pages=16, page_size=4))
    rig.admit(admit(1, prompt=48, tokens=1))
    rig.run()
    assert (4, 12) == (rig.scheduler.statistics().pages_free, rig.scheduler.statistics().pages_cached)

    rig.admit(admit(2, prompt=24, tokens=1))
    rig.run()

    assert 2 == rig.scheduler.statistics().pages_evicted


def test_d19_d20_a_split_prefix_is_released_whole() -> None:
    rig = Rig()
    rig.admit(admit(1, prompt_ids=range(32), tokens=20))
    rig.step()
    rig.admit(admit(2, prompt_ids=[*range(12), 99, 99], tokens=20))
    rig.step()
    rig.abort(1)
    rig.abort(2)

    rig.run()

    assert rig.scheduler.statistics().pages_cached == rig.scheduler.flush_cache()
