"""What the engine holds at one moment, for whoever embeds it.

Must not know: how reports are gathered.
"""

import attrs

from layered_llm.domain.messages.supervision import EngineState, Role
from layered_llm.transport.http.debug_state import is_quiescent


@attrs.frozen(kw_only=True)
class EngineReport:
    """One moment."""

    is_quiescent: bool
    """Nothing is open, nothing is left of what was, and every page is back."""
    open_requests: int
    """Opened by this program."""
    running: int
    """Choices."""
    waiting: int
    pages_used: int
    pages_total: int
    violations: tuple[str, ...]
    """What the parts' own checks found broken: never anything."""
    silent: tuple[str, ...]
    """Parts that did not answer in time."""


def to_report(state: EngineState) -> EngineReport:
    gauges = {name: size for report in state.reports if report.role is Role.SCHEDULER for name, size in report.gauges}
    return EngineReport(
        is_quiescent=is_quiescent(state),
        open_requests=sum(report.open_requests for report in state.reports if report.role is Role.API),
        running=gauges.get("running", 0),
        waiting=gauges.get("waiting", 0),
        pages_used=gauges.get("pages_used", 0),
        pages_total=gauges.get("pages_total", 0),
        violations=tuple(text for report in state.reports for text in report.violations),
        silent=state.silent,
    )
