"""A row without a result ends its own request, whoever is in the step with it, and leaves nothing that others could find."""

import pytest

from layered_llm.domain.columns import pack_i8, pack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import StepId
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from support.scheduling_device import FAILS, Script, counting_script
from support.scheduling_rig import Rig, admit, limits, policy


def failing(request: int, position: int = 0, choice: int = 0) -> Script:
    """The counting script, but for one token."""
    at = (request, choice, position)
    return lambda *place: FAILS if place == at else counting_script(*place)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("position", [0, 3])
def test_a_row_that_fails_ends_its_request_with_an_error_and_no_other(in_flight: int, position: int) -> None:
    rig = Rig(policy=policy(in_flight=in_flight), script=failing(2, position))
    for request in (1, 2, 3):
        rig.admit(admit(request, prompt=6, tokens=6))

    rig.run()

    assert {1: FinishReason.LENGTH, 2: FinishReason.ERROR, 3: FinishReason.LENGTH} == {
        request: reason for (request, _), (reason, _) in rig.ended.items()
    }
    for request in (1, 3):
        assert [counting_script(request, 0, at) for at in range(6)] == rig.outputs[request, 0]
    assert position == len(rig.outputs[2, 0])


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("tenant", ["", "alice"])
def test_pages_of_a_row_that_failed_are_found_by_nobody(in_flight: int, tenant: str) -> None:
    rig = Rig(policy=policy(budget=8, in_flight=in_flight), script=failing(1, 2))
    prompt = range(20)
    rig.admit(admit(1, prompt_ids=prompt, tokens=6, tenant=tenant))
    rig.run()

    rig.admit(admit(2, prompt_ids=prompt, tokens=2, tenant=tenant))
    rig.run()

    assert (FinishReason.LENGTH, 0) == (rig.reason(2), rig.cached[2, 0])


def test_pages_that_the_failed_row_had_found_are_not_found_again_either() -> None:
    """Whoever computed them may have left before a result of its own could tell."""
    rig = Rig(script=failing(2))
    for request in (1, 2, 3):
        rig.admit(admit(request, prompt_ids=range(9), tokens=1))
        rig.run()

    assert {(1, 0): 0, (3, 0): 0} == rig.cached


def sharing_mid_prompt(script: Script, in_flight: int) -> Rig:
    """The second begins with what the first computed of a prompt of which no row has logits yet; the third comes last."""
    rig = Rig(limits=limits(pages=40), policy=policy(budget=8, in_flight=in_flight), script=script)
    rig.admit(admit(1, prompt_ids=range(30), tokens=2))
    rig.step()
    rig.step()
    rig.admit(admit(2, prompt_ids=range(34), tokens=2))
    rig.admit(admit(9, prompt_ids=range(500, 520), tokens=3))
    rig.run()
    rig.admit(admit(3, prompt_ids=range(34), tokens=2))
    rig.run()
    return rig


@pytest.mark.parametrize("in_flight", [1, 2])
def test_who_shared_pages_before_they_were_known_to_be_bad_fails_alone_and_leaves_none_to_be_found(in_flight: int) -> None:
    assert 0 < sharing_mid_prompt(counting_script, in_flight).cached[2, 0]

    poisoned = {(1, 0, 0), (2, 0, 0)}
    rig = sharing_mid_prompt(lambda *place: FAILS if place in poisoned else counting_script(*place), in_flight)

    reasons = {request: rig.reason(request) for request in (1, 2, 3, 9)}
    assert {1: FinishReason.ERROR, 2: FinishReason.ERROR, 3: FinishReason.LENGTH, 9: FinishReason.LENGTH} == reasons
    assert 0 == rig.cached[3, 0]
    assert [counting_script(9, 0, at) for at in range(3)] == rig.outputs[9, 0]


def test_what_others_begin_with_stays_in_the_cache() -> None:
    rig = Rig(script=failing(2))
    for request, start in ((1, 100), (2, 200), (3, 100)):
        rig.admit(admit(request, prompt_ids=range(start, start + 9), tokens=1))
        rig.run()

    assert 8 == rig.cached[3, 0]


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("choice", [0, 1, 2])
def test_a_choice_that_fails_ends_its_siblings_running_or_waiting(in_flight: int, choice: int) -> None:
    rig = Rig(limits=limits(slots=2), policy=policy(in_flight=in_flight, running=2), script=failing(1, 1, choice))
    rig.admit(admit(1, prompt=9, tokens=3, choices=4))
    rig.admit(admit(2, prompt=9, tokens=8))

    rig.run()

    assert FinishReason.ERROR is rig.reason(1, choice)
    assert FinishReason.ERROR is rig.reason(1, 3)
    assert [counting_script(2, 0, at) for at in range(8)] == rig.outputs[2, 0]


def test_a_request_that_was_left_while_its_row_failed_is_ended_once() -> None:
    rig = Rig(script=failing(1))
    rig.admit(admit(1, prompt=9))
    rig.launch()
    rig.abort(1)

    rig.finish()
    rig.run()

    assert FinishReason.ABORT is rig.reason(1)


def until_preempted(script: Script) -> Rig:
    rig = Rig(limits=limits(pages=10), policy=policy(in_flight=2), script=script)
    for request in (1, 2):
        rig.admit(admit(request, prompt=4, tokens=20))
    for _ in range(40):
        rig.step()
        if rig.scheduler.statistics().counters.preemptions:
            break
    return rig


def test_a_choice_that_was_preempted_while_its_row_failed_is_ended() -> None:
    position = len(until_preempted(counting_script).outputs[2, 0]) - 1
    rig = until_preempted(failing(2, position))
    assert 1 == rig.scheduler.statistics().counters.preemptions

    rig.run()

    assert ((FinishReason.ERROR, position), FinishReason.LENGTH) == (rig.ended[2, 0], rig.reason(1))


def test_a_failed_row_that_the_step_has_not_is_our_own_fault() -> None:
    rig = Rig()
    rig.admit(admit(1))
    rig.launch()
    result = StepCompleted(
        step=StepId(1),
        token_ids=pack_i32([0]),
        device_us=0,
        open_slots=1,
        failed_rows=pack_i32([1]),
        failures=pack_i8([FinishReason.ERROR]),
    )

    with pytest.raises(InvariantViolated, match="has 1 rows"):
        rig.scheduler.complete(result)


def test_only_the_first_failure_is_said_to_be_the_first() -> None:
    rig = Rig(policy=policy(running=1), script=lambda *_place: FAILS)
    for request in (1, 2):
        rig.admit(admit(request))

    rig.run()

    assert [True, False] == [effects.is_first_failure for effects in rig.completed if effects.outgoing]
