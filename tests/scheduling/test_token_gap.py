"""A bound on the time between two tokens, on a device whose costs are known."""

from collections.abc import Iterator
from itertools import accumulate, repeat

import pytest

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep
from layered_llm.scheduling.budget import MIN_PREFILL_TOKENS
from support.scheduling_engine import Engine, all_alone, engine_limits, random_workload, scripted_device
from support.scheduling_rig import Rig, admit, limits, policy

GAP_US = 20_000


def cost_us(step: ExecuteStep) -> int:
    """4 ms a step, 50 µs a token, and more for what stands before it in the context."""
    rows = zip(unpack_i32(step.starts), unpack_i32(step.counts), strict=True)
    return 4_000 + sum(count * (50 + start // 200) for start, count in rows)


def rig_with(*, gap_us: int | None = GAP_US, in_flight: int = 1) -> Rig:
    rig = Rig(
        limits=limits(pages=4096, page_size=16, slots=64),
        policy=policy(budget=1024, running=64, in_flight=in_flight, gap_us=gap_us),
    )
    rig.device.cost = cost_us
    return rig


def steps_of_a_crowd(rig: Rig, count: int) -> Iterator[ExecuteStep]:
    """Streams that decode all the time, and every twenty steps a prompt of 2000 tokens."""
    for stream in range(8):
        rig.admit(admit(stream, prompt=30, tokens=count))
    for step in range(count):
        if step % 20 == 0:
            rig.admit(admit(100 + step, prompt=2000, tokens=4))
        launched = rig.step()
        if launched is not None:
            yield launched


@pytest.mark.parametrize("in_flight", [1, 2])
def test_steps_of_running_streams_stay_below_the_gap(in_flight: int) -> None:
    steps = list(steps_of_a_crowd(rig_with(in_flight=in_flight), 200))

    longest_us = max(map(cost_us, steps[60:]))

    assert longest_us <= 1.05 * GAP_US


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("alone", [0, 3000])
def test_the_first_prompts_beside_the_first_stream_keep_the_gap(in_flight: int, alone: int) -> None:
    """With nothing learned but from a prompt without any stream beside it, or from nothing at all."""
    rig = rig_with(in_flight=in_flight)
    if alone:
        rig.admit(admit(1, prompt=alone, tokens=1))
        rig.run()
    rig.admit(admit(2, prompt=10, tokens=200))
    while not rig.outputs[2, 0]:
        rig.step()
    for prompt in range(3):
        rig.admit(admit(10 + prompt, prompt=3000, tokens=1))

    costs_us = [cost_us(step) for _ in range(60) if (step := rig.step()) is not None]

    assert max(costs_us) <= 1.05 * GAP_US
    assert 200 > len(rig.outputs[2, 0])


def test_the_gap_is_used_for_prefill() -> None:
    steps = list(steps_of_a_crowd(rig_with(), 200))

    busy = [step for step in steps[60:] if max(unpack_i32(step.counts)) > 1]

    assert sum(map(cost_us, busy)) / len(busy) > 0.7 * GAP_US


def test_without_a_bound_steps_are_filled() -> None:
    steps = list(steps_of_a_crowd(rig_with(gap_us=None), 100))

    assert 1024 == max(sum(unpack_i32(step.counts)) for step in steps)


def test_a_prompt_is_not_starved_by_a_gap_that_cannot_be_kept() -> None:
    rig = rig_with(gap_us=1)
    for stream in range(4):
        rig.admit(admit(stream, prompt=4, tokens=100))
    rig.step()
    rig.admit(admit(9, prompt=50 * MIN_PREFILL_TOKENS, tokens=1))

    for _ in range(50):
        rig.step()

    assert 1 == len(rig.outputs[9, 0])


def test_a_step_without_running_streams_is_filled() -> None:
    rig = rig_with(gap_us=1)
    rig.admit(admit(1, prompt=3000, tokens=1))

    counts = [sum(unpack_i32(step.counts)) for step in iter(rig.step, None)]

    assert [1024, 1024, 952, 0] == counts


@pytest.mark.parametrize("gap_us", [1, 6_000, 50_000])
@pytest.mark.parametrize("seed", range(3))
def test_no_output_depends_on_the_bound(seed: int, gap_us: int) -> None:
    workload = random_workload(seed)
    clock_us = accumulate(repeat(3_000))
    device = scripted_device(engine_limits(pages=64, page_size=4), now_us=clock_us.__next__)
    engine = Engine(device, policy(budget=64, in_flight=2, gap_us=gap_us))
    for message in workload:
        engine.admit(message)

    assert all_alone(workload) == engine.run()
