"""Whole workloads against the fake device, which checks every page and slot of every step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import GO_ON
from layered_llm.runtime.scripted.scripted_device import uneven_tokens
from layered_llm.scheduling.policy import SchedulingPolicy
from support.scheduling_device import counting_script
from support.scheduling_rig import Rig, admit, limits, policy


def test_a_workload_step_by_step() -> None:
    """Budget 8, two choices at once: request 1 of 10 + 3 tokens, request 2 of 3 + 2, request 3 of 2 + 2."""
    rig = Rig(policy=policy(budget=8, running=2))
    rig.admit(admit(1, prompt=10, tokens=3))
    rig.admit(admit(2, prompt=3, tokens=2))
    rig.admit(admit(3, prompt=2, tokens=2))

    trace = []
    while not rig.scheduler.is_quiescent:
        step = rig.step()
        assert step is not None
        slots = unpack_i32(step.slots)
        rows = list(zip(slots, unpack_i32(step.starts), unpack_i32(step.counts), strict=True))
        trace.append((list(unpack_i32(step.retired)), rows))

    assert [
        ([], [(0, 0, 5), (1, 0, 3)]),
        ([], [(1, GO_ON, 1), (0, 5, 5)]),
        ([1], [(0, GO_ON, 1), (1, 0, 2)]),
        ([], [(0, GO_ON, 1), (1, GO_ON, 1)]),
        ([0, 1], []),
    ] == trace


Workload = tuple[RuntimeLimits, SchedulingPolicy, list[tuple[int, int, int]]]
"""The bounds, and for each request its prompt tokens, its most output tokens and its choices."""


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    page_size = draw(st.sampled_from([1, 4, 16]))
    pages = draw(st.integers(2, 12))
    context = pages * page_size
    shape = st.tuples(st.integers(1, context - 1), st.integers(1, 12), st.integers(1, 3))
    return (
        limits(pages=pages, page_size=page_size, slots=draw(st.integers(1, 4)), decode_tokens=draw(st.integers(1, 3))),
        policy(
            budget=draw(st.integers(1, 20)),
            running=draw(st.integers(1, 5)),
            in_flight=draw(st.integers(1, 2)),
            cache=draw(st.booleans()),
        ),
        [(prompt, min(tokens, context - prompt), choices) for prompt, tokens, choices in draw(st.lists(shape, max_size=8))],
    )


@settings(max_examples=80, deadline=None, derandomize=True)
@given(workload=workloads())
def test_every_choice_gets_every_token_whatever_the_batch(workload: Workload) -> None:
    engine, bounds, shapes = workload
    rig = Rig(limits=engine, policy=bounds, yields=uneven_tokens)
    for request, (prompt, tokens, choices) in enumerate(shapes):
        rig.admit(admit(request, prompt=prompt, tokens=tokens, choices=choices))

    rig.run(max_steps=5_000)

    expected = {
        (request, choice): [counting_script(request, choice, position) for position in range(tokens)]
        for request, (_, tokens, choices) in enumerate(shapes)
        for choice in range(choices)
    }
    assert expected == rig.outputs
    assert all(reason is FinishReason.LENGTH for reason, _ in rig.ended.values())


@pytest.mark.parametrize("in_flight", [1, 2])
def test_two_steps_in_flight_give_the_tokens_of_one(in_flight: int) -> None:
    bounds = policy(budget=7, running=3, in_flight=in_flight)
    rig = Rig(policy=bounds, script=lambda seed, _choice, at: (seed * 31 + at * 7) % 11)
    for request in range(12):
        rig.admit(admit(request, prompt=1 + request, tokens=10, end_ids=(5,)))

    rig.run()

    for request in range(12):
        full = [(request * 31 + at * 7) % 11 for at in range(10)]
        expected = full[: full.index(5) + 1] if 5 in full else full
        assert expected == rig.outputs[request, 0]
