import attrs
import pytest

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.text_scheduler import Refused
from layered_llm.domain.verdicts import RefuseReason
from support.scheduling_rig import Rig, admit, limits, policy


def refusal(request: int, reason: RefuseReason, limit: int, actual: int) -> Refused:
    return Refused(request=RequestId(request), reason=reason, limit=limit, actual=actual)


def test_a_request_that_fits_is_queued_once() -> None:
    rig = Rig()

    rig.admit(admit(7))

    assert ([7], []) == (rig.queued, rig.refused)


def test_prompt_and_output_beyond_the_context_are_refused_in_tokens() -> None:
    rig = Rig(limits=limits(context=20))

    rig.admit(admit(1, prompt=16, tokens=5))
    rig.admit(admit(2, prompt=16, tokens=6))

    assert [1] == rig.queued
    assert [refusal(2, RefuseReason.CONTEXT_LENGTH_EXCEEDED, 20, 21)] == rig.refused


def test_more_than_the_whole_pool_is_refused_in_pages() -> None:
    rig = Rig(limits=limits(pages=4, page_size=4, context=100))

    rig.admit(admit(1, prompt=12, tokens=5))
    rig.admit(admit(2, prompt=13, tokens=5))

    assert [1] == rig.queued
    assert [refusal(2, RefuseReason.NEVER_FITS, 4, 5)] == rig.refused


def test_choices_that_fit_only_one_after_another_are_taken() -> None:
    rig = Rig(limits=limits(pages=4, page_size=4))

    rig.admit(admit(1, prompt=12, tokens=4, choices=3))
    rig.run()

    assert {(1, 0), (1, 1), (1, 2)} == rig.ended.keys()


def test_a_full_queue_refuses_in_requests() -> None:
    rig = Rig(policy=policy(queued=2))

    for request in (1, 2, 3):
        rig.admit(admit(request, choices=5))

    assert [1, 2] == rig.queued
    assert [refusal(3, RefuseReason.QUEUE_FULL, 2, 2)] == rig.refused


def test_a_request_that_started_leaves_the_queue() -> None:
    rig = Rig(policy=policy(queued=1))
    rig.admit(admit(1))
    rig.step()

    rig.admit(admit(2))

    assert [1, 2] == rig.queued


def test_a_refused_request_holds_nothing() -> None:
    rig = Rig(policy=policy(queued=1))
    rig.admit(admit(1))
    rig.admit(admit(2))

    rig.abort(1)

    rig.quiet()
    assert {RefuseReason.QUEUE_FULL: 1} == rig.scheduler.statistics().counters.refused


def test_an_id_that_is_open_is_not_used_again() -> None:
    rig = Rig()
    rig.admit(admit(1))

    with pytest.raises(InvariantViolated, match="request 1"):
        rig.admit(admit(1))


def test_first_come_first_served_even_where_a_later_one_would_fit() -> None:
    rig = Rig(limits=limits(pages=4, page_size=4))
    rig.admit(admit(1, prompt=4, tokens=8))
    rig.admit(admit(2, prompt=12, tokens=4))
    rig.admit(admit(3, prompt=2, tokens=2))
    rig.step()

    assert [1] == [request for request, _ in rig.outputs if rig.outputs[request, 0]]
    rig.run()
    assert [1, 2, 3] == [request for request, _ in rig.ended]


def test_no_more_choices_run_than_the_policy_allows() -> None:
    rig = Rig(policy=policy(running=3))
    rig.admit(admit(1, choices=5))

    rig.step()

    assert (3, 2) == (rig.scheduler.statistics().running_choices, rig.scheduler.statistics().waiting_choices)
    rig.run()


def test_no_more_choices_run_than_the_runtime_has_slots() -> None:
    rig = Rig(limits=limits(slots=2))
    rig.admit(admit(1, choices=5))

    rig.step()

    assert 2 == rig.scheduler.statistics().running_choices
    rig.run()


def test_choices_start_in_order() -> None:
    rig = Rig(policy=policy(running=1))
    rig.admit(admit(1, choices=3, tokens=1))

    rig.run()

    assert [0, 1, 2] == [step.opened[0].choice for step in rig.device.steps if step.opened]


def test_an_accepted_request_may_use_an_ended_id_again() -> None:
    rig = Rig()
    rig.admit(admit(1))
    rig.abort(1)
    rig.outputs.clear()
    rig.ended.clear()

    rig.admit(admit(1))
    rig.run()

    assert FinishReason.LENGTH is rig.reason(1)


def test_a_prompt_of_the_whole_context_and_pool_has_its_one_token() -> None:
    """That token is never fed back, so that it takes no position."""
    rig = Rig(limits=limits(pages=4, page_size=4, context=16))

    rig.admit(admit(1, prompt=16, tokens=1))
    rig.run()

    assert ([], [(1, 0)]) == (rig.refused, list(rig.ended))


def test_a_runtime_of_several_page_groups_is_our_fault() -> None:
    with pytest.raises(InvariantViolated, match="the runtime has 2 page groups"):
        Rig(limits=attrs.evolve(limits(), page_groups=2))
