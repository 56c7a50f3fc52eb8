"""The cancellation contract, as far as it can be seen from outside of the engine when nothing is open.

Must not know: how the faults came about.
"""

from collections.abc import Iterator
from typing import Final

from layered_llm.domain.messages.supervision import EngineState, Role, is_quiescent
from layered_llm.domain.metrics import ABORTS_EMITTED, ABORTS_HANDLED, ABORTS_LATE, ABORTS_LOST, Metric

_COMPARED: Final = (ABORTS_EMITTED, ABORTS_HANDLED, ABORTS_LATE, ABORTS_LOST)


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
    emitted, handled, late, lost = (_total(state, counter) for counter in _COMPARED)
    if emitted != handled + late + lost:
        yield f"C3: {emitted:g} aborts were emitted, {handled:g} handled, {late:g} late, {lost:g} lost"


def _total(state: EngineState, counter: Metric) -> float:
    measured = (each for report in state.reports for each in report.metrics if each.metric == counter)
    return sum(value for each in measured for _, value in each.samples)


def _scheduler_gauges(state: EngineState) -> dict[str, int]:
    return {name: value for report in state.reports if report.role is Role.SCHEDULER for name, value in report.gauges}
