"""Reports of all processes in Prometheus' text format 0.0.4.

Must not know: HTTP, how a figure is counted, how reports are gathered.

A report says of each metric what it is, so that none is listed here. Samples are summed over processes: that is right for
counters and for histogram buckets, and each gauge comes from one process alone. Every metric has exactly one HELP and one TYPE
line, and its samples stand together, buckets by rising bound.

A sum without the part of a process that did not answer would look as if the counter had begun again, and the next one as if all
of it had happened in between: then no sums are shown at all, and whoever reads them sees a gap.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from layered_llm.domain.messages.supervision import EngineState, Role
from layered_llm.domain.metrics import PREFIX, Measured, Metric
from layered_llm.transport.http.vllm.vllm_metrics import PREFIX as VLLM_PREFIX
from layered_llm.transport.http.vllm.vllm_metrics import vllm_metrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_READY: Final = Metric("engine_ready", "gauge", "1 while the engine takes requests.")
_SILENT: Final = Metric(
    "processes_silent", "gauge", "Processes that did not answer; while there are any, sums over all processes are left out."
)
_OPEN_REQUESTS: Final = Metric("open_requests", "gauge", "Requests that a process holds.")


def render(
    state: EngineState,
    *,
    is_ready: bool,
    vllm_model_name: str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """The whole exposition, each line ended by a line feed; with a model's name vLLM's names come first.

    `settings` are the server's, of which vLLM's names tell some.
    """
    measured = _summed(state)
    gauges = [each for each in measured if each.metric.kind == "gauge"]
    sums = [] if state.silent else sorted((each for each in measured if each not in gauges), key=lambda each: each.metric.name)
    opened = tuple(
        (f'{{role="{report.role}",index="{report.index}"}}', float(report.open_requests)) for report in state.reports
    )
    shown = (
        Measured.of(_READY, is_ready),
        Measured.of(_SILENT, len(state.silent)),
        *gauges,
        Measured(_OPEN_REQUESTS, opened),
        *sums,
    )
    theirs = () if vllm_model_name is None else vllm_metrics(sums, _scheduler_gauges(state), vllm_model_name, settings)
    return "".join((*(_lines(VLLM_PREFIX, each) for each in theirs), *(_lines(PREFIX, each) for each in shown)))


def _scheduler_gauges(state: EngineState) -> Mapping[str, int]:
    return next((dict(report.gauges) for report in state.reports if report.role is Role.SCHEDULER), {})


def _summed(state: EngineState) -> list[Measured]:
    """Of labels that not all processes have, in their order."""
    sums: dict[Metric, dict[str, float]] = {}
    for report in state.reports:
        for each in report.metrics:
            values = sums.setdefault(each.metric, {})
            for sample, value in each.samples:
                values[sample] = values.get(sample, 0.0) + value
    return [
        Measured(metric, tuple(values.items() if metric.kind == "histogram" else sorted(values.items())))
        for metric, values in sums.items()
    ]


def _lines(prefix: str, measured: Measured) -> str:
    """None of a metric without samples."""
    metric, name = measured.metric, f"{prefix}{measured.metric.name}"
    lines = [f"{name}{sample} {_number(value)}\n" for sample, value in measured.samples]
    return "".join((f"# HELP {name} {metric.help}\n", f"# TYPE {name} {metric.kind}\n", *lines)) if lines else ""


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
