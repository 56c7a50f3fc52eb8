"""A run as a picture. Needs matplotlib, an optional dependency: import this module only where a plot was asked for.

Must not know: how numbers were computed, how requests were sent.
"""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layered_llm.client.bench.records import RunRecord


def save_plot(title: str, run: RunRecord, path: Path) -> None:
    """Writes a picture in the format that the suffix of `path` names: latencies as cumulative shares, and requests over time.

    Raises OSError, and ValueError for an unknown format.
    """
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    latencies, gaps, timeline = figure.subplots(1, 3)
    completed = [record for record in run.requests if record.failure is None]
    _draw_shares(latencies, "time to first token", (record.first_token_s for record in completed))
    _draw_shares(latencies, "end to end", (record.end_to_end_s for record in completed))
    _draw_shares(gaps, "gap between chunks", (gap for record in completed for gap in record.gaps_s))
    _draw_timeline(timeline, run)
    for axes in (latencies, gaps):
        axes.set(xlabel="milliseconds", ylabel="share of samples", ylim=(0, 1.01))
        axes.grid(alpha=0.3)
        if axes.has_data():
            axes.set_xlim(left=0)
            axes.legend()
    figure.suptitle(title)
    figure.savefig(path)


def _draw_shares(axes: Axes, label: str, sample_s: Iterable[float | None]) -> None:
    values_ms = sorted(value * 1e3 for value in sample_s if value is not None)
    if values_ms:
        axes.ecdf(values_ms, label=label)


def _draw_timeline(axes: Axes, run: RunRecord) -> None:
    """One bar per request: waiting for its first token, then receiving; failed ones in red."""
    origin_s = min((record.due_s for record in run.requests), default=0.0)
    for record in run.requests:
        start_s, end_s = record.due_s - origin_s, record.ended_s - origin_s
        if record.failure is not None:
            axes.hlines(record.index, start_s, end_s, color="tab:red")
            continue
        first_s = start_s + (record.first_token_s if record.first_token_s is not None else record.end_to_end_s)
        axes.hlines(record.index, start_s, first_s, color="tab:orange")
        axes.hlines(record.index, first_s, end_s, color="tab:blue")
    axes.set(xlabel="seconds", ylabel="request", title="waiting (orange), receiving (blue), failed (red)")
