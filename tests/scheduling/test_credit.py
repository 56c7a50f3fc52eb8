import pytest

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import StepId, TextId
from layered_llm.domain.messages.text_scheduler import StepsTaken
from support.scheduling_rig import Rig, admit, limits, policy


def test_a_worker_without_credit_is_not_planned_and_others_go_on() -> None:
    rig = Rig(policy=policy(credit=2), gives_credit=False)
    rig.admit(admit(1, tokens=20), worker=0)
    rig.admit(admit(2, tokens=20), worker=1)

    for _ in range(10):
        rig.step()
        rig.take_steps(worker=1)

    assert (2, 10) == (len(rig.outputs[1, 0]), len(rig.outputs[2, 0]))


def test_credit_takes_up_where_it_left_off() -> None:
    rig = Rig(policy=policy(credit=2), gives_credit=False)
    rig.admit(admit(1, tokens=5))
    for _ in range(4):
        rig.step()
    assert rig.launch() is None

    rig.gives_credit = True
    rig.take_steps()
    rig.run()

    assert 5 == len(rig.outputs[1, 0])


def test_a_worker_without_credit_starts_nothing_and_holds_up_nobody() -> None:
    rig = Rig(limits=limits(pages=6, page_size=4), policy=policy(credit=1), gives_credit=False)
    rig.admit(admit(1, tokens=4), worker=0)
    rig.step()
    rig.admit(admit(2, tokens=8), worker=0)
    rig.admit(admit(3, tokens=4), worker=1)

    rig.step()

    assert 1 == len(rig.outputs[3, 0])
    assert 1 == rig.scheduler.statistics().waiting_choices


def test_a_choice_that_was_passed_over_keeps_its_place() -> None:
    rig = Rig(policy=policy(running=1, credit=1), gives_credit=False)
    rig.admit(admit(1, tokens=1), worker=0)
    rig.step()
    rig.admit(admit(2, tokens=1), worker=0)
    rig.admit(admit(3, tokens=1), worker=1)
    rig.take_steps(worker=0)

    rig.step()

    assert [1, 2] == [request for request, _ in rig.ended]


def test_a_prompt_of_a_worker_without_credit_keeps_nothing_from_decodes() -> None:
    rig = Rig(policy=policy(budget=4, credit=1), gives_credit=False)
    rig.admit(admit(1, prompt=1, tokens=1), worker=0)
    rig.admit(admit(2, prompt=40), worker=0)
    for request in (3, 4, 5, 6):
        rig.admit(admit(request, prompt=1, tokens=9), worker=1)
    while not all(rig.outputs[request, 0] for request in (3, 4, 5, 6)):
        rig.step()
        rig.take_steps(worker=1)

    step = rig.launch()

    assert step is not None
    assert 4 == step.row_count


def test_an_abort_needs_no_credit() -> None:
    rig = Rig(policy=policy(credit=1), gives_credit=False)
    rig.admit(admit(1, tokens=20))
    rig.step()

    rig.abort(1)

    rig.run()


def test_credit_for_a_step_twice_is_no_more_than_once() -> None:
    rig = Rig(policy=policy(credit=2), gives_credit=False)
    rig.admit(admit(1, tokens=20))
    rig.step()
    rig.step()
    for _ in range(3):
        rig.scheduler.handle(TextId(0), StepsTaken(step=StepId(1)))

    rig.step()

    assert rig.launch() is None


def test_credit_for_a_step_that_was_never_sent_is_our_own_fault() -> None:
    rig = Rig()
    rig.admit(admit(1))
    rig.step()

    with pytest.raises(InvariantViolated, match="step 2"):
        rig.scheduler.handle(TextId(0), StepsTaken(step=StepId(2)))


def test_what_a_worker_is_owed_is_bounded_with_two_steps_in_flight() -> None:
    rig = Rig(policy=policy(credit=2, in_flight=2), gives_credit=False)
    rig.admit(admit(1, tokens=20))

    for _ in range(10):
        rig.step()

    assert 3 == len(rig.untaken[TextId(0)])
