"""The state of all processes as one JSON object.

Must not know: HTTP, how reports were gathered.

`quiescent` is the whole promise on one line: nothing is open, nothing is left of what was, and every page is back.
"""

from typing import Any

from layered_llm.domain.messages.supervision import EngineState, Role, is_quiescent


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
