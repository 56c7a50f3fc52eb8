"""The state of all processes as one JSON object.

Must not know: HTTP, how reports were gathered.

`quiescent` is the whole promise on one line: nothing is open, nothing is left of what was, and every page is back.
"""

from collections.abc import Mapping
from typing import Any

from layered_llm.domain.messages.supervision import EngineState, Role, StateReport


def debug_state(state: EngineState) -> dict[str, Any]:
    """One list of processes for each role, but for the scheduler, of which there is one."""
    schedulers = _processes(state, Role.SCHEDULER)
    return {
        "api": _processes(state, Role.API),
        "text": _processes(state, Role.TEXT),
        "scheduler": schedulers[0] if schedulers else None,
        "runtime": _processes(state, Role.RUNTIME),
        "supervisor": _processes(state, Role.SUPERVISOR),
        "silent": list(state.silent),
        "violations": [f"{report.role.value} {report.index}: {text}" for report in state.reports for text in report.violations],
        "quiescent": is_quiescent(state),
    }


def is_quiescent(state: EngineState) -> bool:
    """Whether every process answered, holds nothing of any request, no abort is on its way, and every page is free or cached.

    A request that its API process has left is in nobody's hands while it and its abort are on their way: that the receiver has
    taken as many aborts as were sent tells that none is.
    """
    schedulers = [report for report in state.reports if report.role is Role.SCHEDULER]
    return (
        not state.silent
        and len(schedulers) == 1
        and _pages_are_back(dict(schedulers[0].gauges))
        and all(_is_idle(report) for report in state.reports)
        and not _aborts_on_their_way(state)
    )


def _aborts_on_their_way(state: EngineState) -> bool:
    taken = {
        (report.role, report.index, tally.peer, tally.index): tally.aborts
        for report in state.reports
        for tally in report.aborts_taken
    }
    return any(
        taken.get((tally.peer, tally.index, report.role, report.index), 0) != tally.aborts
        for report in state.reports
        for tally in report.aborts_sent
    )


def _is_idle(report: StateReport) -> bool:
    return not report.open_requests and not report.violations and not any(size for _, size in report.maps)


def _pages_are_back(gauges: Mapping[str, int]) -> bool:
    names = ("running", "waiting", "pages_free", "pages_cached", "pages_total")
    if not all(name in gauges for name in names):
        return False
    running, waiting, free, cached, total = (gauges[name] for name in names)
    return running == 0 and waiting == 0 and free + cached == total


def _processes(state: EngineState, role: Role) -> list[dict[str, Any]]:
    reports = sorted((report for report in state.reports if report.role is role), key=lambda report: report.index)
    return [
        {
            **dict(report.gauges),
            "index": report.index,
            "pid": report.pid,
            "open_requests": report.open_requests,
            "maps": dict(report.maps),
        }
        for report in reports
    ]
