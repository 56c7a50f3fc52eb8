"""A request of which nothing has started when its time in the queue is over."""

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.scheduling.open_requests import QueueDeadlines
from support.scheduling_rig import Rig, admit, limits, policy

QUEUE_US = 1_000
WAITS = FinishReason.QUEUE_TIMEOUT


def busy() -> Rig:
    """A scheduler whose only place is taken."""
    rig = Rig(policy=policy(running=1, queue_us=QUEUE_US))
    rig.admit(admit(1, tokens=8), now_us=0)
    rig.step()
    return rig


def test_a_request_is_ended_when_its_time_is_over_and_not_before() -> None:
    rig = busy()
    rig.admit(admit(2), now_us=500)

    rig.expire(now_us=1_499)
    assert (2, 0) not in rig.ended
    rig.expire(now_us=1_500)

    assert (WAITS, 0) == rig.ended[2, 0]
    assert 1 == rig.scheduler.statistics().counters.queue_timeouts
    rig.run()
    assert FinishReason.LENGTH is rig.reason(1)


def test_what_runs_is_never_ended_by_it() -> None:
    rig = busy()

    rig.expire(now_us=1_000_000)

    assert {} == rig.ended
    rig.run()


def test_all_choices_end_together_and_only_those_whose_time_is_over() -> None:
    rig = busy()
    rig.admit(admit(2, choices=3), now_us=100)
    rig.admit(admit(3), now_us=200)

    rig.expire(now_us=1_150)

    assert {(2, choice): (WAITS, 0) for choice in range(3)} == rig.ended
    rig.run()
    assert FinishReason.LENGTH is rig.reason(3)


def test_a_request_of_which_one_choice_started_goes_on() -> None:
    rig = Rig(policy=policy(running=1, queue_us=QUEUE_US))
    rig.admit(admit(1, choices=2), now_us=0)
    rig.step()

    rig.expire(now_us=1_000_000)

    rig.run()
    assert [FinishReason.LENGTH] * 2 == [rig.reason(1, choice) for choice in range(2)]


def test_a_preempted_choice_was_promised_its_end() -> None:
    rig = Rig(limits=limits(pages=10, page_size=4), policy=policy(queue_us=QUEUE_US))
    for request in (1, 2):
        rig.admit(admit(request, prompt=4, tokens=20), now_us=0)
    while not rig.scheduler.statistics().counters.preemptions:
        rig.step()
    assert 1 == rig.scheduler.statistics().waiting_requests

    rig.expire(now_us=1_000_000)

    rig.run()
    assert [FinishReason.LENGTH] * 2 == [rig.reason(request) for request in (1, 2)]


def test_whoever_stood_behind_one_that_did_not_fit_starts_when_its_time_is_over() -> None:
    rig = Rig(limits=limits(pages=10, page_size=4), policy=policy(queue_us=QUEUE_US))
    rig.admit(admit(1, prompt=8, tokens=8), now_us=0)
    rig.step()
    rig.admit(admit(2, prompt=36, tokens=1), now_us=0)
    rig.admit(admit(3, prompt=4, tokens=1), now_us=900)
    assert 2 == rig.scheduler.statistics().waiting_requests

    rig.expire(now_us=1_000)
    rig.step()

    assert 0 == rig.scheduler.statistics().waiting_requests
    rig.run()
    assert (WAITS, FinishReason.LENGTH) == (rig.reason(2), rig.reason(3))


def test_an_abort_behind_it_is_late_and_one_before_it_leaves_nothing_to_end() -> None:
    rig = busy()
    rig.admit(admit(2), now_us=0)
    rig.admit(admit(3), now_us=0)
    rig.abort(2)

    rig.expire(now_us=QUEUE_US)
    rig.abort(3)

    assert (FinishReason.ABORT, WAITS) == (rig.reason(2), rig.reason(3))
    figures = rig.scheduler.statistics()
    assert (1, 1, 1) == (figures.counters.aborts_handled, figures.counters.aborts_late, figures.counters.queue_timeouts)
    rig.run()


def test_each_text_worker_hears_of_its_own() -> None:
    rig = busy()
    rig.admit(admit(2), worker=0, now_us=0)
    rig.admit(admit(3), worker=1, now_us=0)

    effects = rig.scheduler.expire(QUEUE_US)

    assert [TextId(0), TextId(1)] == [outgoing.worker for outgoing in effects.outgoing]
    rig._receive(effects)
    rig.run()


def test_without_a_bound_there_is_nothing_to_look_for() -> None:
    deadlines = QueueDeadlines(None)
    deadlines.came(RequestId(1), 0)

    assert (None, [], 0) == (deadlines.next_us(5), deadlines.overdue(10**12), len(deadlines))


def test_the_next_look_is_for_the_oldest_or_for_whoever_might_come_now() -> None:
    deadlines = QueueDeadlines(QUEUE_US)
    assert 1_005 == deadlines.next_us(5)

    deadlines.came(RequestId(1), 100)
    deadlines.came(RequestId(2), 200)
    assert 1_100 == deadlines.next_us(300)

    deadlines.gone(RequestId(1))
    assert 1_200 == deadlines.next_us(300)
