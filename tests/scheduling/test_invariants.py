"""`check` finds what is broken: each test breaks one thing by hand."""

from collections.abc import Callable

import pytest

from layered_llm.domain.ids import PageId, SlotId, StepId
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.sequences import Phase, Sequence
from support.scheduling_rig import Rig, admit, policy


def a_rig() -> Rig:
    """Request 1 decodes, request 2 is between chunks, request 3 waits, a step is in flight."""
    rig = Rig(policy=policy(budget=6, running=2))
    rig.admit(admit(1, tokens=20))
    rig.step()
    rig.admit(admit(2, prompt=40))
    rig.admit(admit(3))
    rig.launch()
    return rig


def sequence_of(scheduler: Scheduler, request: int) -> Sequence:
    return next(one.sequences[0] for key, one in scheduler._requests.items() if key == request)


def page_freed_twice(scheduler: Scheduler) -> None:
    scheduler._running.pages._pool.give_back([PageId(0)], StepId(0))


def page_lost(scheduler: Scheduler) -> None:
    scheduler._running.pages._pool.take(1)


def reservation_lost(scheduler: Scheduler) -> None:
    scheduler._running.pages._reserved -= 1


def slot_freed_twice(scheduler: Scheduler) -> None:
    scheduler._running._slots.give_back([SlotId(0)], StepId(0))


def quarantine_without_end(scheduler: Scheduler) -> None:
    pool = scheduler._running.pages._pool
    pool.give_back(pool.take(1), StepId(99))


def waiting_choice_forgotten(scheduler: Scheduler) -> None:
    scheduler._waiting.remove(sequence_of(scheduler, 3))


def request_forgotten(scheduler: Scheduler) -> None:
    del scheduler._requests[sequence_of(scheduler, 3).request]


def wrong_phase(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 3).phase = Phase.DECODING


def open_choices_miscounted(scheduler: Scheduler) -> None:
    scheduler._requests[sequence_of(scheduler, 1).request].open_choices = 0


def result_not_counted(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 2).computed_tokens += 1


def planned_beyond_the_end(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 1).plan_limit_tokens = 0


def page_table_too_short(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 1).pages.pop()


def step_lost(scheduler: Scheduler) -> None:
    scheduler._in_flight.clear()


FAULTS: dict[str, Callable[[Scheduler], None]] = {
    "not all pages, each once": page_freed_twice,
    "quarantined and owned pages": page_lost,
    "choices were promised": reservation_lost,
    "not all slots, each once": slot_freed_twice,
    "wait for step 99": quarantine_without_end,
    "3 choices of open requests have not ended, 2 are kept": waiting_choice_forgotten,
    "2 choices of open requests have not ended, 3 are kept": request_forgotten,
    "kept under Phase.WAITING": wrong_phase,
    "request 1 counts 0 open choices, 1 have not ended": open_choices_miscounted,
    "choice 0 of request 2 has 5 tokens in flight": result_not_counted,
    "choice 0 of request 1 is planned beyond its limit": planned_beyond_the_end,
    "choice 0 of request 1 owns 1 pages for 5 planned tokens": page_table_too_short,
    "choice 0 of request 1 has 0 tokens in flight": step_lost,
}


@pytest.mark.parametrize(("sentence", "break_it"), FAULTS.items())
def test_a_fault_is_found(sentence: str, break_it: Callable[[Scheduler], None]) -> None:
    scheduler = a_rig().scheduler
    assert () == scheduler.check()

    break_it(scheduler)

    assert any(sentence in found for found in scheduler.check())
