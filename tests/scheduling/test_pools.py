import pytest

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import PageId, StepId
from layered_llm.scheduling.pages import QuarantinePool


def test_ids_that_no_step_names_are_free_at_once() -> None:
    pool = QuarantinePool([PageId(0), PageId(1)])

    pool.give_back(pool.take(2), StepId(0))

    assert (2, 0) == (len(pool.free), pool.quarantined_count)


def test_ids_of_a_step_in_flight_come_back_with_its_acknowledgement() -> None:
    pool = QuarantinePool([PageId(0), PageId(1)])
    pool.acknowledge(StepId(1))

    pool.give_back(pool.take(2), StepId(3))
    pool.acknowledge(StepId(2))
    assert (0, 2) == (len(pool.free), pool.quarantined_count)

    pool.acknowledge(StepId(3))
    assert (2, 0) == (len(pool.free), pool.quarantined_count)


def test_taking_more_than_is_free_is_our_own_fault() -> None:
    with pytest.raises(InvariantViolated):
        QuarantinePool([PageId(0)]).take(2)
