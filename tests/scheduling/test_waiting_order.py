"""Who of those that wait starts next. One choice runs at a time, so that the order of the ends is the order of the starts."""

import pytest

from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.text_scheduler import Refused
from layered_llm.domain.verdicts import RefuseReason
from layered_llm.scheduling.policy import AdmissionOrder
from support.scheduling_rig import Rig, admit, limits, policy


def one_at_a_time(order: AdmissionOrder = AdmissionOrder.FIRST_COME, *, overtakes: int = 99) -> Rig:
    return Rig(policy=policy(running=1, order=order, overtakes=overtakes))


def starts(rig: Rig) -> list[int]:
    rig.run()
    return [opened.sampling.seed for step in rig.device.steps for opened in step.opened]


@pytest.mark.parametrize("order", AdmissionOrder)
def test_equals_go_first_come_first_served(order: AdmissionOrder) -> None:
    rig = one_at_a_time(order)
    for request in (3, 1, 2):
        rig.admit(admit(request, tokens=1))

    assert [3, 1, 2] == starts(rig)


def test_the_lowest_priority_goes_first() -> None:
    rig = one_at_a_time(AdmissionOrder.PRIORITY)
    for request, priority in enumerate([1, 0, -2, 0]):
        rig.admit(admit(request, tokens=1, priority=priority))

    assert [2, 1, 3, 0] == starts(rig)


def test_priority_is_ignored_first_come_first_served() -> None:
    rig = one_at_a_time()
    for request, priority in enumerate([1, 0, -2, 0]):
        rig.admit(admit(request, tokens=1, priority=priority))

    assert [0, 1, 2, 3] == starts(rig)


def test_whoever_came_first_is_passed_over_a_bounded_number_of_times() -> None:
    rig = one_at_a_time(AdmissionOrder.PRIORITY, overtakes=2)
    rig.admit(admit(0, tokens=1, priority=1))
    rig.admit(admit(1, tokens=1, priority=1))
    for request in range(2, 8):
        rig.admit(admit(request, tokens=1))

    assert [2, 3, 0, 4, 5, 1, 6, 7] == starts(rig)


def test_the_longest_known_prefix_goes_first() -> None:
    rig = one_at_a_time(AdmissionOrder.LONGEST_PREFIX)
    rig.admit(admit(0, prompt_ids=range(16), tokens=1))
    rig.run()
    rig.admit(admit(1, tokens=1))
    rig.admit(admit(2, prompt_ids=[*range(6), 99], tokens=1))
    rig.admit(admit(3, prompt_ids=[*range(13), 99], tokens=1))

    assert [0, 3, 2, 1] == starts(rig)


def test_a_known_prefix_passes_a_bounded_number_of_times() -> None:
    rig = one_at_a_time(AdmissionOrder.LONGEST_PREFIX, overtakes=1)
    rig.admit(admit(0, prompt_ids=range(16), tokens=1))
    rig.run()
    rig.admit(admit(1, tokens=1))
    for request in (2, 3):
        rig.admit(admit(request, prompt_ids=[*range(13), 99], tokens=1))

    assert [0, 2, 1, 3] == starts(rig)


def test_tenants_take_turns() -> None:
    rig = one_at_a_time()
    for request, tenant in enumerate(["a", "a", "a", "b", "c", "b"]):
        rig.admit(admit(request, tokens=1, tenant=tenant))

    assert [0, 3, 4, 1, 5, 2] == starts(rig)


def test_priority_counts_within_a_tenant() -> None:
    rig = one_at_a_time(AdmissionOrder.PRIORITY)
    for request, (tenant, priority) in enumerate([("a", -5), ("a", -5), ("b", 1), ("b", 0)]):
        rig.admit(admit(request, tokens=1, tenant=tenant, priority=priority))

    assert [0, 3, 1, 2] == starts(rig)


def test_a_tenant_whose_worker_has_no_credit_is_passed_over() -> None:
    rig = Rig(policy=policy(running=1, credit=1), gives_credit=False)
    rig.admit(admit(1, tokens=1, tenant="a"), worker=0)
    rig.step()
    rig.admit(admit(2, tokens=1, tenant="a"), worker=0)
    rig.admit(admit(3, tokens=1, tenant="b"), worker=1)

    rig.step()

    assert (3, 0) in rig.ended


def test_one_of_another_tenant_that_does_not_fit_is_not_passed() -> None:
    rig = Rig(limits=limits(pages=4, page_size=4))
    rig.admit(admit(1, prompt=4, tokens=8, tenant="a"))
    rig.step()
    rig.admit(admit(2, prompt=12, tokens=4, tenant="b"))
    rig.admit(admit(3, prompt=2, tokens=2, tenant="a"))

    rig.step()

    assert [] == rig.outputs[3, 0]
    rig.run()


def test_a_tenant_has_a_bounded_number_of_streams() -> None:
    rig = Rig(policy=policy(streams=2))
    for request, tenant in enumerate(["a", "a", "a", "b"]):
        rig.admit(admit(request, tokens=1, tenant=tenant))

    assert [0, 1, 3] == rig.queued
    assert [Refused(request=RequestId(2), reason=RefuseReason.TOO_MANY_STREAMS, limit=2, actual=2)] == rig.refused
    rig.run()
    rig.admit(admit(4, tokens=1, tenant="a"))
    assert [0, 1, 3, 4] == rig.queued


def test_all_tenants_together_have_a_bounded_number_of_streams() -> None:
    rig = Rig(policy=policy(streams=2, all_streams=3))
    for request, tenant in enumerate(["a", "b", "b", "c"]):
        rig.admit(admit(request, tokens=1, tenant=tenant))

    assert [0, 1, 2] == rig.queued
    assert [Refused(request=RequestId(3), reason=RefuseReason.SERVER_FULL, limit=3, actual=3)] == rig.refused
    rig.run()
    rig.admit(admit(4, tokens=1, tenant="c"))
    assert [0, 1, 2, 4] == rig.queued


def test_choices_of_one_request_are_one_stream() -> None:
    rig = Rig(policy=policy(streams=1))
    rig.admit(admit(0, choices=3))

    assert [0] == rig.queued
    rig.run()
