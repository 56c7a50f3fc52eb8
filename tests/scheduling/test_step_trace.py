import pytest

from layered_llm.domain.ids import TextId
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.plan import Hold, NextStep
from support.scheduling_rig import Rig, admit, limits, policy


def launched(rig: Rig) -> Rig:
    assert rig.launch() is not None
    return rig


def test_a_row_tells_whose_tokens_it_computes() -> None:
    rig = Rig(policy=policy(budget=8))
    rig.admit(admit(1, prompt=3))
    rig.step()
    rig.admit(admit(2, prompt=12))
    rig.step()

    trace = launched(rig).trace

    rows = [(row.request, row.choice, row.start, row.tokens, row.is_prefill) for row in trace.rows]
    assert [(1, 0, 4, 1, False), (2, 0, 7, 5, True)] == rows
    assert (1, 5) == (trace.decode_rows, trace.prefill_tokens)


def test_pages_and_choices_are_those_of_the_moment_behind_the_planning() -> None:
    rig = Rig(limits=limits(pages=16, page_size=4), policy=policy(running=1))
    rig.admit(admit(1, prompt_ids=range(8), tokens=1))
    rig.run()
    for request in (2, 3):
        rig.admit(admit(request, prompt_ids=[*range(4), 9], tokens=4))

    trace = launched(rig).trace

    assert (1, 1) == (trace.running, trace.waiting)
    assert (2, 1, 13) == (trace.pages_used, trace.pages_cached, trace.pages_free)


@pytest.mark.parametrize(
    ("hold", "running", "pages"), [(Hold.NOBODY_WAITS, 2, 64), (Hold.NO_SLOT, 1, 64), (Hold.NO_PAGES, 2, 4)]
)
def test_a_trace_tells_why_nobody_else_started(hold: Hold, running: int, pages: int) -> None:
    rig = Rig(limits=limits(pages=pages, page_size=4), policy=policy(running=running))
    for request in (1, 2):
        rig.admit(admit(request, prompt=9, tokens=4))

    assert hold is launched(rig).trace.hold


def test_who_waits_for_a_prompt_that_is_under_way_is_not_ready() -> None:
    rig = Rig(policy=policy(budget=4))
    rig.admit(admit(1, prompt=9, choices=2))

    assert Hold.NOBODY_READY is launched(rig).trace.hold


def test_a_trace_names_who_was_preempted_and_which_slots_are_retired() -> None:
    rig = Rig(limits=limits(pages=10, page_size=4))
    for request in (1, 2):
        rig.admit(admit(request, prompt=4, tokens=20))
    traces = []
    while not rig.scheduler.statistics().counters.preemptions:
        traces.append(launched(rig).trace)
        rig.finish()

    slots = [row.slot for row in traces[-2].rows if row.request == 2]
    assert ((2, 0),) == traces[-1].preempted
    assert slots == list(traces[-1].retired)


def test_a_wait_ends_with_the_first_step_that_computes_some_of_a_request() -> None:
    rig = Rig(policy=policy(budget=4, running=2))
    scheduler = rig.scheduler
    for request, now_us in ((1, 100), (2, 150), (3, 170)):
        scheduler.handle(TextId(0), admit(request, prompt=6, tokens=2, choices=2 if request == 1 else 1), now_us)

    waits = []
    for now_us in range(1_000, 30_000, 1_000):
        if not isinstance(step := scheduler.plan(now_us), NextStep):
            break
        waits.append(step.waited_us)
        rig.device.launch(step.message)
        scheduler.complete(rig.device.finish())

    assert [900, 1_850, 5_830] == [wait for waits_of_step in waits for wait in waits_of_step]


def test_a_prefill_lasts_from_the_first_step_to_the_first_token_of_any_choice() -> None:
    rig = Rig(policy=policy(budget=4, running=2))
    scheduler = rig.scheduler
    scheduler.handle(TextId(0), admit(1, prompt=6, tokens=2, choices=2))

    took = []
    for now_us in range(1_000, 30_000, 1_000):
        if not isinstance(step := scheduler.plan(now_us), NextStep):
            break
        rig.device.launch(step.message)
        took.append(scheduler.complete(rig.device.finish(), now_us + 10).prefill_us)

    assert [1_010] == [time for times in took for time in times]


def test_who_is_preempted_and_starts_again_did_not_wait_anew() -> None:
    rig = Rig(limits=limits(pages=10, page_size=4))
    for request in (1, 2):
        rig.admit(admit(request, prompt=4, tokens=20))

    waits: list[int] = []
    while not rig.scheduler.is_quiescent:
        waits += rig.planned.waited_us if rig.launch(5) and rig.planned else ()
        rig.finish()

    assert rig.scheduler.statistics().counters.preemptions
    assert [5, 5] == waits


def test_nothing_is_traced_unless_somebody_wants_it() -> None:
    scheduler = Scheduler(limits=limits(), policy=policy())
    scheduler.handle(TextId(0), admit(1))

    step = scheduler.plan()

    assert isinstance(step, NextStep)
    assert step.trace is None
