"""State reports out of the cores' statistics: what `/debug/state` and `/metrics` show.

Must not know: how a report travels or is rendered.
"""

from typing import TYPE_CHECKING

from layered_llm.domain.messages.supervision import AbortTally, Role, StateReport
from layered_llm.domain.metrics import gauges_of, metrics_of

if TYPE_CHECKING:  # a process reports of one core, and would import the others' for it
    from layered_llm.scheduling.statistics import SchedulerStatistics
    from layered_llm.service.scheduler_figures import SchedulerFigures
    from layered_llm.text.text_statistics import TextStatistics


def scheduler_report(
    statistics: "SchedulerStatistics", figures: "SchedulerFigures", violations: tuple[str, ...], *, query: int, pid: int
) -> StateReport:
    return StateReport(
        query=query,
        role=Role.SCHEDULER,
        index=0,
        pid=pid,
        open_requests=statistics.open_requests,
        maps=statistics.maps,
        gauges=gauges_of(statistics),
        metrics=(*metrics_of(statistics), *metrics_of(statistics.counters), *metrics_of(figures)),
        violations=violations,
        aborts_taken=tuple(AbortTally(peer=Role.TEXT, index=text, aborts=aborts) for text, aborts in statistics.aborts_taken),
    )


def runtime_report(open_slots: int, *, query: int, rank: int, pid: int) -> StateReport:
    """The runtime has no event loop to be asked: the scheduler says what the last step's result said."""
    return StateReport(
        query=query, role=Role.RUNTIME, index=rank, pid=pid, open_requests=open_slots, maps=(("slots", open_slots),)
    )


def text_report(statistics: "TextStatistics", violations: tuple[str, ...], *, query: int, index: int, pid: int) -> StateReport:
    counters = statistics.counters
    return StateReport(
        query=query,
        role=Role.TEXT,
        index=index,
        pid=pid,
        open_requests=statistics.open_requests,
        maps=statistics.maps,
        metrics=(*metrics_of(statistics), *metrics_of(counters)),
        violations=violations,
        aborts_sent=(AbortTally(peer=Role.SCHEDULER, index=0, aborts=counters.aborts_forwarded + counters.aborts_own),),
        aborts_taken=tuple(
            AbortTally(peer=Role.API, index=api, aborts=aborts) for api, aborts in sorted(counters.aborts_taken.items())
        ),
    )
