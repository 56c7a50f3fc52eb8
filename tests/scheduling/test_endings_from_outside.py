"""Aborts and stops, in every phase of a choice."""

import pytest

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.messages.text_scheduler import AbortRequest
from support.scheduling_rig import Rig, admit, limits, policy


def assert_aborted(rig: Rig, request: int, choices: int = 1) -> None:
    """Told at once, counted once, never named again, and everything is back when the steps in flight are done."""
    assert {FinishReason.ABORT} == {rig.reason(request, choice) for choice in range(choices)}
    rig.run()
    figures = rig.scheduler.statistics()
    assert (1, 0) == (figures.counters.aborts_handled, figures.counters.aborts_late)


def test_aborts_are_counted_by_the_worker_that_they_came_from() -> None:
    rig = Rig()
    for request, worker in ((1, 0), (2, 1)):
        rig.admit(admit(request), worker=worker)
        rig.abort(request)
    rig.abort(2)

    assert ((TextId(0), 1), (TextId(1), 2)) == rig.scheduler.statistics().aborts_taken
    rig.run()


@pytest.fixture(params=[1, 2])
def in_flight(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_waiting() -> None:
    rig = Rig(policy=policy(running=1))
    rig.admit(admit(1))
    rig.admit(admit(2))
    rig.step()

    rig.abort(2)

    assert_aborted(rig, 2)
    assert 1 == sum(len(step.opened) for step in rig.device.steps)


def test_started_but_not_yet_in_a_step() -> None:
    rig = Rig(policy=policy(budget=1))
    rig.admit(admit(1, prompt=3))
    rig.admit(admit(2))
    rig.step()
    assert 2 == rig.scheduler.statistics().running_choices

    rig.abort(2)

    assert_aborted(rig, 2)
    assert [0] == [opened.slot for step in rig.device.steps for opened in step.opened]


def test_between_chunks() -> None:
    rig = Rig(policy=policy(budget=4))
    rig.admit(admit(1, prompt=32))
    rig.step()
    rig.step()

    rig.abort(1)

    figures = rig.scheduler.statistics()
    assert (2, 62) == (figures.pages_cached, figures.pages_free)
    assert_aborted(rig, 1)
    assert 3 == len(rig.device.steps)


def test_a_chunk_in_flight(in_flight: int) -> None:
    rig = Rig(policy=policy(budget=4, in_flight=in_flight))
    rig.admit(admit(1, prompt=32))
    for _ in range(in_flight):
        rig.launch()

    rig.abort(1)

    assert in_flight == rig.scheduler.statistics().pages_quarantined
    for _ in range(in_flight):
        rig.finish()
    assert 0 == rig.scheduler.statistics().pages_quarantined
    assert_aborted(rig, 1)


def test_the_last_chunk_in_flight(in_flight: int) -> None:
    rig = Rig(policy=policy(in_flight=in_flight))
    rig.admit(admit(1))
    rig.launch()

    rig.abort(1)

    assert_aborted(rig, 1)
    assert [] == rig.outputs[1, 0]
    assert 1 == rig.scheduler.statistics().counters.dropped_tokens


def test_decoding_between_steps() -> None:
    rig = Rig()
    rig.admit(admit(1, tokens=20))
    for _ in range(3):
        rig.step()

    rig.abort(1)

    assert_aborted(rig, 1)
    assert (FinishReason.ABORT, 3) == rig.ended[1, 0]


def test_a_decode_in_flight(in_flight: int) -> None:
    rig = Rig(policy=policy(in_flight=in_flight))
    rig.admit(admit(1, tokens=20))
    rig.step()
    rig.launch()

    rig.abort(1)

    assert_aborted(rig, 1)
    assert (FinishReason.ABORT, 1) == rig.ended[1, 0]


def test_the_step_in_flight_that_would_have_ended_it_by_length(in_flight: int) -> None:
    rig = Rig(policy=policy(in_flight=in_flight))
    rig.admit(admit(1, tokens=1))
    rig.launch()

    rig.abort(1)

    assert_aborted(rig, 1)


def test_the_step_in_flight_that_would_have_ended_it_by_an_end_id(in_flight: int) -> None:
    rig = Rig(policy=policy(in_flight=in_flight), script=lambda _seed, _choice, _position: 77)
    rig.admit(admit(1, tokens=9, end_ids=(77,)))
    rig.launch()

    rig.abort(1)

    assert_aborted(rig, 1)
    assert [] == rig.outputs[1, 0]


def test_choices_that_wait_run_and_ended() -> None:
    rig = Rig(policy=policy(running=2), script=lambda _seed, choice, position: 77 if choice == 0 else position)
    rig.admit(admit(1, tokens=9, choices=4, end_ids=(77,)))
    rig.launch()
    rig.finish()
    rig.launch()

    rig.abort(1)

    assert [FinishReason.STOP, *[FinishReason.ABORT] * 3] == [rig.reason(1, choice) for choice in range(4)]
    rig.run()
    assert 1 == rig.scheduler.statistics().counters.aborts_handled


def test_no_later_step_names_the_request_but_to_retire_it() -> None:
    rig = Rig(policy=policy(in_flight=2))
    rig.admit(admit(1, tokens=20))
    rig.step()

    rig.abort(1)
    sent = len(rig.device.steps)
    rig.run()

    assert [(pack_i32([0]), b"")] == [(step.retired, step.slots) for step in rig.device.steps[sent:]]


def test_a_second_abort_is_late() -> None:
    rig = Rig()
    rig.admit(admit(1))
    rig.abort(1)

    rig.abort(1)

    figures = rig.scheduler.statistics()
    assert (1, 1) == (figures.counters.aborts_handled, figures.counters.aborts_late)


def test_an_abort_of_an_unknown_or_finished_request_is_late() -> None:
    rig = Rig()
    rig.admit(admit(1))
    rig.run()

    rig.abort(1)
    rig.abort(2)

    figures = rig.scheduler.statistics()
    assert (0, 2) == (figures.counters.aborts_handled, figures.counters.aborts_late)


def test_an_abort_by_another_worker_is_our_own_fault() -> None:
    rig = Rig()
    rig.admit(admit(1), worker=0)

    with pytest.raises(InvariantViolated, match="text worker 1"):
        rig.scheduler.handle(TextId(1), AbortRequest(request=RequestId(1), reason=AbortReason.TIMEOUT))


def test_aborting_all_at_once_brings_every_figure_back() -> None:
    rig = Rig(limits=limits(pages=16), policy=policy(running=4))
    for request in range(10):
        rig.admit(admit(request, prompt=6, tokens=6))
    rig.step()
    rig.launch()

    for request in range(10):
        rig.abort(request)

    figures = rig.scheduler.statistics()
    assert (0, 0) == (figures.running_choices, figures.waiting_choices)
    rig.run()
    assert 0 == rig.scheduler.statistics().pages_used


def test_a_stop_ends_the_choice_and_counts_as_text_says() -> None:
    rig = Rig()
    rig.admit(admit(1, tokens=20))
    for _ in range(3):
        rig.step()

    rig.stop(1, output_tokens=2)

    rig.run()
    assert (FinishReason.STOP, 2) == rig.ended[1, 0]
    assert 1 == rig.scheduler.statistics().counters.stops_handled


def test_a_stop_with_a_step_in_flight_drops_its_token(in_flight: int) -> None:
    rig = Rig(policy=policy(in_flight=in_flight))
    rig.admit(admit(1, tokens=20))
    rig.step()
    rig.launch()

    rig.stop(1, output_tokens=1)

    rig.run()
    assert 1 == len(rig.outputs[1, 0])


def test_a_stop_of_one_choice_leaves_the_others() -> None:
    rig = Rig()
    rig.admit(admit(1, tokens=5, choices=2))
    rig.step()

    rig.stop(1, choice=0)

    rig.run()
    assert {(1, 0): (FinishReason.STOP, 1), (1, 1): (FinishReason.LENGTH, 5)} == rig.ended


def test_a_late_stop_is_counted() -> None:
    rig = Rig()
    rig.admit(admit(1, tokens=1, choices=2))
    rig.admit(admit(2, tokens=20, choices=2))
    rig.step()
    rig.stop(2, choice=1)

    rig.stop(1, choice=0)
    rig.stop(2, choice=1)

    figures = rig.scheduler.statistics()
    assert (1, 2) == (figures.counters.stops_handled, figures.counters.stops_late)


@pytest.mark.parametrize(("choice", "tokens"), [(2, 1), (-1, 1), (0, 0), (0, 2)])
def test_a_stop_that_cannot_be_is_our_own_fault(choice: int, tokens: int) -> None:
    rig = Rig()
    rig.admit(admit(1, choices=2))
    rig.step()

    with pytest.raises(InvariantViolated):
        rig.stop(1, choice=choice, output_tokens=tokens)
