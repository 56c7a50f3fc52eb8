import pytest

from layered_llm.service.workers.runtime_ranks import STEP_DEADLINE_PER_TOKEN_S, STEP_DEADLINE_S, StepDeadlines


def allowance_s(tokens: int) -> float:
    return STEP_DEADLINE_S + STEP_DEADLINE_PER_TOKEN_S * tokens


def test_a_runtime_without_steps_is_never_overdue() -> None:
    assert not StepDeadlines().is_overdue(1e9)


@pytest.mark.parametrize("tokens", [0, 1, 500])
def test_a_step_is_overdue_in_proportion_to_its_tokens(tokens: int) -> None:
    deadlines = StepDeadlines()
    deadlines.sent(tokens, 10.0)

    assert not deadlines.is_overdue(9.9 + allowance_s(tokens))
    assert deadlines.is_overdue(10.0 + allowance_s(tokens))


def test_the_time_of_a_step_begins_when_the_step_before_it_is_back() -> None:
    deadlines = StepDeadlines()
    deadlines.sent(5, 0.0)
    deadlines.sent(1, 0.0)
    deadlines.answered(50.0)

    assert not deadlines.is_overdue(49.9 + allowance_s(1))
    assert deadlines.is_overdue(50.0 + allowance_s(1))


def test_a_step_that_is_sent_to_an_idle_runtime_has_all_of_its_time() -> None:
    deadlines = StepDeadlines()
    deadlines.sent(1, 0.0)
    deadlines.answered(1.0)
    deadlines.sent(1, 100.0)

    assert not deadlines.is_overdue(99.9 + allowance_s(1))
    assert deadlines.is_overdue(100.0 + allowance_s(1))


def test_one_looks_again_before_a_step_that_is_sent_meanwhile_can_be_overdue() -> None:
    deadlines = StepDeadlines()
    assert STEP_DEADLINE_S == deadlines.next_look_s(0.0)

    deadlines.sent(500, 0.0)

    assert STEP_DEADLINE_S == deadlines.next_look_s(0.0)
    assert allowance_s(500) == deadlines.next_look_s(allowance_s(500) - 1.0)
