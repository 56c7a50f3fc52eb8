import pytest

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import PageId, StepId
from layered_llm.scheduling.pages import PageAllocator
from layered_llm.scheduling.pools import QuarantinePool


def test_ids_that_no_step_names_are_free_at_once() -> None:
    pool = QuarantinePool([PageId(0), PageId(1)])

    pool.give_back(pool.take(2), StepId(0))

    assert (2, 0) == (pool.free_count, pool.quarantined_count)


def test_ids_of_a_step_in_flight_come_back_with_its_acknowledgement() -> None:
    pool = QuarantinePool([PageId(0), PageId(1)])
    pool.acknowledge(StepId(1))

    pool.give_back(pool.take(2), StepId(3))
    pool.acknowledge(StepId(2))
    assert (0, 2) == (pool.free_count, pool.quarantined_count)

    pool.acknowledge(StepId(3))
    assert (2, 0) == (pool.free_count, pool.quarantined_count)


def test_taking_more_than_is_free_is_our_own_fault() -> None:
    with pytest.raises(InvariantViolated):
        QuarantinePool([PageId(0)]).take(2)


def test_pages_are_counted_rounded_up() -> None:
    pages = PageAllocator(pages=4, page_size_tokens=16)

    assert [0, 1, 1, 2] == [pages.pages_for(tokens) for tokens in (0, 1, 16, 17)]


def test_a_reservation_is_nobody_elses() -> None:
    pages = PageAllocator(pages=4, page_size_tokens=16)

    pages.reserve(3)

    assert pages.can_reserve(1)
    assert not pages.can_reserve(2)
    assert 4 == pages.free


def test_an_allocation_uses_up_the_reservation() -> None:
    pages = PageAllocator(pages=4, page_size_tokens=16)
    pages.reserve(3)

    taken = pages.allocate(2)

    assert (2, 2, 1) == (len(taken), pages.free, pages.reserved)
    assert pages.can_reserve(1)


def test_reserving_more_than_is_to_be_had_is_our_own_fault() -> None:
    pages = PageAllocator(pages=4, page_size_tokens=16)
    pages.reserve(3)

    with pytest.raises(InvariantViolated):
        pages.reserve(2)
