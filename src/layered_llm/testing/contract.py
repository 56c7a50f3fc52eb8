"""The cancellation contract, as far as it can be seen from outside of the engine when nothing is open.

Must not know: how the faults came about.
"""

from collections.abc import Iterator
from typing import Final

from layered_llm.domain.messages.supervision import EngineState, Role
from layered_llm.transport.http.debug_state import is_quiescent

_EMITTED: Final = "layered_llm_aborts_emitted_total"
_HANDLED: Final = "layered_llm_aborts_handled_total"
_LATE: Final = "layered_llm_aborts_late_total"
_LOST: Final = "layered_llm_aborts_lost_total"


def broken_promises(state: EngineState) -> tuple[str, ...]:
    """What an engine without open requests does not keep, one sentence each; empty is right."""
    return tuple(_broken(state))


def _broken(state: EngineState) -> Iterator[str]:
    if state.silent:
        yield f"no answer from {', '.join(state.silent)}"
    for report in state.reports:
        name = f"{report.role.value} {report.index}"
        yield from (f"{name}: {violation}" for violation in report.violations)
        if report.open_requests:
            yield f"C7: {name} holds {report.open_requests} requests"
        yield from (f"C7: {name}: {size} entries are left in {table}" for table, size in report.maps if size)
    if not is_quiescent(state):
        yield f"C7: not quiescent: {_scheduler_gauges(state)}"
    emitted, handled, late, lost = (_total(state, counter) for counter in (_EMITTED, _HANDLED, _LATE, _LOST))
    if emitted != handled + late + lost:
        yield f"C3: {emitted:g} aborts were emitted, {handled:g} handled, {late:g} late, {lost:g} lost"


def _total(state: EngineState, counter: str) -> float:
    return sum(value for report in state.reports for name, value in report.samples if name.partition("{")[0] == counter)


def _scheduler_gauges(state: EngineState) -> dict[str, int]:
    return {name: value for report in state.reports if report.role is Role.SCHEDULER for name, value in report.gauges}
