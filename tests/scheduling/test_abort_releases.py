"""When everything that an aborted request held is back, and how many steps that took."""

import pytest

from layered_llm.domain.ids import RequestId
from layered_llm.scheduling.flight import AbortRelease
from support.scheduling_rig import Rig, admit, limits, policy


def release(request: int, aborted_us: int, steps: int) -> AbortRelease:
    return AbortRelease(request=RequestId(request), aborted_us=aborted_us, steps=steps)


def test_what_waits_is_released_at_once() -> None:
    rig = Rig(policy=policy(running=1))
    rig.admit(admit(1))
    rig.admit(admit(2))
    rig.launch()

    rig.abort(2, now_us=7)

    assert [release(2, 7, 0)] == rig.released


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_request_is_released_with_the_last_step_that_names_it(in_flight: int) -> None:
    rig = Rig(policy=policy(budget=4, in_flight=in_flight))
    rig.admit(admit(1, prompt=32))
    for _ in range(in_flight):
        rig.launch()

    rig.abort(1, now_us=5)
    assert [] == rig.released
    for _ in range(in_flight - 1):
        rig.finish()
        assert [] == rig.released
    rig.finish()

    assert [release(1, 5, in_flight)] == rig.released
    assert 0 == rig.scheduler.statistics().pages_quarantined
    rig.run()


def test_the_choice_that_ended_before_keeps_its_pages_no_longer_than_the_others() -> None:
    rig = Rig(policy=policy(in_flight=2))
    rig.admit(admit(1, choices=2, tokens=8))
    rig.step()
    rig.step()
    rig.stop(1, choice=0)

    rig.abort(1, now_us=3)
    while not rig.released:
        assert 0 < rig.scheduler.statistics().pages_quarantined
        rig.finish()

    assert 0 == rig.scheduler.statistics().pages_quarantined
    rig.run()


def test_a_preempted_request_is_released_with_the_step_that_it_was_in() -> None:
    rig = Rig(limits=limits(pages=10, page_size=4), policy=policy(in_flight=2))
    for request in (1, 2):
        rig.admit(admit(request, prompt=4, tokens=20))
    while not rig.scheduler.statistics().counters.preemptions:
        while rig.launch() is not None:
            pass
        if not rig.scheduler.statistics().counters.preemptions:
            rig.finish()
    assert 0 < rig.scheduler.statistics().pages_quarantined

    rig.abort(2, now_us=1)
    while not rig.released:
        rig.finish()

    assert 0 == rig.scheduler.statistics().pages_quarantined
    rig.run()


def test_an_abort_that_is_late_releases_nothing() -> None:
    rig = Rig()
    rig.admit(admit(1, tokens=1))
    rig.run()

    rig.abort(1, now_us=1)

    assert [] == rig.released


def test_a_release_is_told_once() -> None:
    rig = Rig()
    rig.admit(admit(1))
    rig.abort(1, now_us=1)

    rig.admit(admit(2))

    assert [release(1, 1, 0)] == rig.released
    rig.run()
    assert [release(1, 1, 0)] == rig.released
