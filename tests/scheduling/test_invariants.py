"""`check` finds what is broken: each test breaks one thing by hand."""

from collections.abc import Callable

import pytest

from layered_llm.domain.ids import PageId, SlotId, StepId
from layered_llm.domain.placement import CacheRoot
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.prefix_tree import Node, PrefixTree
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
    return next(one.sequences[0] for key, one in scheduler._open.by_id.items() if key == request)


def page_freed_twice(scheduler: Scheduler) -> None:
    scheduler._running.pages._pool.give_back([PageId(0)], StepId(0))


def page_lost(scheduler: Scheduler) -> None:
    scheduler._running.pages._pool.take(1)


def lock_lost(scheduler: Scheduler) -> None:
    place = sequence_of(scheduler, 1).place
    assert place is not None
    place.locks -= 1


def place_forgotten(scheduler: Scheduler) -> None:
    pages = scheduler._running.pages
    pages._tree = PrefixTree(pages.page_size_tokens)


def evictable_pages_miscounted(scheduler: Scheduler) -> None:
    scheduler._running.pages._tree.evictable_pages -= 1


def half_computed_page_shared(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 2).shared_pages += 1


def others_pages_shared(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 1).pages[0] = PageId(63)


def salt_ignored(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 1).cache_root = CacheRoot(cache_salt="other")


def key_of_another_page(scheduler: Scheduler) -> None:
    place = sequence_of(scheduler, 1).place
    assert place is not None
    place.key = place.key[::-1]


def page_without_tokens(scheduler: Scheduler) -> None:
    place = sequence_of(scheduler, 1).place
    assert place is not None
    place.pages += scheduler._running.pages._pool.take(1)


def empty_tree_kept(scheduler: Scheduler) -> None:
    scheduler._running.pages._tree._roots[CacheRoot("x")] = Node(cache_root=CacheRoot("x"), parent=None, key=b"", pages=[])


def token_lost(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 1).tokens.pop()


def tenant_miscounted(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 1).tenant.open_requests += 1


def slot_freed_twice(scheduler: Scheduler) -> None:
    scheduler._running._slots.give_back([SlotId(0)], StepId(0))


def quarantine_without_end(scheduler: Scheduler) -> None:
    pool = scheduler._running.pages._pool
    pool.give_back(pool.take(1), StepId(99))


def waiting_choice_forgotten(scheduler: Scheduler) -> None:
    scheduler._waiting.remove(sequence_of(scheduler, 3))


def request_forgotten(scheduler: Scheduler) -> None:
    del scheduler._open._requests[sequence_of(scheduler, 3).request]


def wrong_phase(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 3).phase = Phase.DECODING


def open_choices_miscounted(scheduler: Scheduler) -> None:
    scheduler._open.by_id[sequence_of(scheduler, 1).request].open_choices = 0


def result_not_counted(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 2).computed_tokens += 1


def planned_beyond_the_end(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 1).plan_limit_tokens = 0


def page_table_too_short(scheduler: Scheduler) -> None:
    sequence_of(scheduler, 1).pages.pop()


def step_lost(scheduler: Scheduler) -> None:
    scheduler._flight.steps.clear()


FAULTS: dict[str, Callable[[Scheduler], None]] = {
    "not all pages, each once": page_freed_twice,
    "cached and owned pages": page_lost,
    "locks, 1 are held in it": lock_lost,
    "that is not in the prefix tree": place_forgotten,
    "counted as evictable": evictable_pages_miscounted,
    "choice 0 of request 2 shares pages of tokens that are not computed": half_computed_page_shared,
    "choice 0 of request 1 shares 1 pages that are not its own beginning": others_pages_shared,
    "choice 0 of request 1 shares pages of CacheRoot(tenant='', cache_salt=None)": salt_ignored,
    "is kept under another key": key_of_another_page,
    "has 2 pages for 16 bytes of tokens": page_without_tokens,
    "is an empty tree": empty_tree_kept,
    "has 4 tokens, not its prompt and 1": token_lost,
    "not counted right by tenant": tenant_miscounted,
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
