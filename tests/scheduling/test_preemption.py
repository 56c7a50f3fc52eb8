"""What happens when the pool is too small for what runs."""

import pytest

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import RequestId
from support.scheduling_device import counting_script
from support.scheduling_rig import Rig, admit, limits, policy


def two_that_grow(*, in_flight: int = 1, cache: bool = True) -> Rig:
    """Two requests of 4 + 20 tokens in a pool of 10 pages of 4: they start together, and one has to give way."""
    rig = Rig(limits=limits(pages=10, page_size=4), policy=policy(in_flight=in_flight, cache=cache))
    for request in (1, 2):
        rig.admit(admit(request, prompt=4, tokens=20))
    return rig


def until_preempted(rig: Rig) -> None:
    while not rig.scheduler.statistics().counters.preemptions:
        assert rig.step() is not None


def test_nothing_is_reserved_for_what_a_choice_may_become() -> None:
    rig = two_that_grow()

    rig.step()

    assert 2 == rig.scheduler.statistics().running_choices
    rig.run()


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("cache", [True, False])
def test_no_token_is_lost_or_repeated(in_flight: int, cache: bool) -> None:
    rig = two_that_grow(in_flight=in_flight, cache=cache)

    rig.run()

    assert 1 == rig.scheduler.statistics().counters.preemptions
    for request in (1, 2):
        assert [counting_script(request, 0, position) for position in range(20)] == rig.outputs[request, 0]


def test_the_youngest_gives_way() -> None:
    rig = two_that_grow()
    until_preempted(rig)

    (running,) = rig.scheduler._running.decoding

    assert 1 == running.request
    rig.run()
    assert [1, 2] == [request for request, _ in rig.ended]


def test_a_preempted_choice_starts_again_with_its_output_known() -> None:
    rig = two_that_grow()
    until_preempted(rig)
    said = list(rig.outputs[2, 0])

    rig.run()

    again = [opened for step in rig.device.steps for opened in step.opened][-1]
    assert (2, said) == (again.sampling.seed, list(unpack_i32(again.output_ids)))


def test_what_was_computed_is_found_again_while_it_is_kept() -> None:
    with_cache, without = two_that_grow(), two_that_grow(cache=False)

    with_cache.run()
    without.run()

    assert 46 < with_cache.computed_tokens() < without.computed_tokens()


def test_cached_tokens_are_those_of_the_first_start() -> None:
    rig = Rig(limits=limits(pages=6, page_size=4), policy=policy(budget=4))
    rig.admit(admit(1, prompt=4, tokens=18))
    rig.step()
    rig.admit(admit(2, prompt=12, tokens=4))

    rig.run()

    assert rig.scheduler.statistics().counters.preemptions > 0
    assert 0 == rig.cached[2, 0]


def test_a_preempted_choice_comes_before_all_that_wait() -> None:
    rig = two_that_grow()
    until_preempted(rig)
    rig.admit(admit(3, prompt=1, tokens=1, priority=-5))

    rig.run()

    assert [1, 2, 2, 3] == [opened.sampling.seed for step in rig.device.steps for opened in step.opened]


def test_pages_in_quarantine_come_back_before_anybody_is_preempted() -> None:
    rig = Rig(limits=limits(pages=9, page_size=4), policy=policy(in_flight=2, cache=False))
    for request in (1, 2, 3):
        rig.admit(admit(request, prompt=7, tokens=9))
    while rig.scheduler._open.by_id[RequestId(1)].sequences[0].planned_tokens < 12:
        if rig.launch() is None:
            rig.finish()
    rig.finish()
    rig.abort(3)
    assert (0, 3) == (rig.scheduler.statistics().pages_free, rig.scheduler.statistics().pages_quarantined)

    step = rig.launch()

    assert step is not None
    assert 0 == step.row_count
    rig.run()
    assert 0 == rig.scheduler.statistics().counters.preemptions


def test_a_choice_that_starts_does_not_cost_another_its_next_page() -> None:
    rig = Rig(limits=limits(pages=8, page_size=4))
    rig.admit(admit(1, prompt=16, tokens=9))
    rig.step()
    rig.admit(admit(2, prompt=14, tokens=2))

    rig.step()

    assert 1 == rig.scheduler.statistics().waiting_choices
    rig.run()
    assert 0 == rig.scheduler.statistics().counters.preemptions


@pytest.mark.parametrize("in_flight", [1, 2])
def test_an_abort_while_preempted_leaves_nothing(in_flight: int) -> None:
    rig = two_that_grow(in_flight=in_flight)
    until_preempted(rig)

    rig.abort(2)

    assert FinishReason.ABORT is rig.reason(2)
    rig.run()
    assert 20 == len(rig.outputs[1, 0])


def test_a_stop_while_preempted_ends_it() -> None:
    rig = two_that_grow()
    until_preempted(rig)

    rig.stop(2, output_tokens=3)

    assert (FinishReason.STOP, 3) == rig.ended[2, 0]
    rig.run()


def test_a_token_in_flight_of_a_preempted_choice_is_shown_and_may_end_it() -> None:
    rig = two_that_grow(in_flight=2)
    while not rig.scheduler.statistics().counters.preemptions:
        rig.launch()
        if not rig.scheduler.statistics().counters.preemptions and len(rig.device.launched) == 2:
            rig.finish()
    assert rig.device.launched
    before = len(rig.outputs[2, 0])

    while rig.device.launched:
        rig.finish()

    assert before + 1 == len(rig.outputs[2, 0])
    rig.run()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("budget", [1, 2, 3, 64])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_oldest_always_moves_without_a_cache(budget: int, page_size: int, in_flight: int) -> None:
    rig = Rig(
        limits=limits(pages=32 // page_size, page_size=page_size),
        policy=policy(budget=budget, in_flight=in_flight, cache=False),
    )
    for request in range(8):
        rig.admit(admit(request, prompt=3 + request, tokens=20))

    rig.run(max_steps=3_000)

    assert {(FinishReason.LENGTH, 20)} == set(rig.ended.values())


def test_a_choice_that_stands_still_leaves_the_budget_to_others() -> None:
    rig = Rig(limits=limits(pages=5, page_size=1, slots=2), policy=policy(budget=1, running=2, cache=False))
    rig.admit(admit(0, prompt=3, tokens=2))
    rig.admit(admit(1, prompt=1, tokens=4))

    rig.run(max_steps=100)

    assert 2 == len(rig.ended)


def test_a_worker_without_credit_loses_pages_only_to_older_choices() -> None:
    rig = Rig(limits=limits(pages=10, page_size=4), policy=policy(credit=2), gives_credit=False)
    rig.admit(admit(1, prompt=4, tokens=20), worker=0)
    rig.admit(admit(2, prompt=4, tokens=20), worker=1)

    for _ in range(30):
        rig.step()
        rig.take_steps(worker=1)

    assert 2 == len(rig.outputs[1, 0])
    assert 20 == len(rig.outputs[2, 0])
    rig.gives_credit = True
    rig.take_steps(worker=0)
    rig.run()
