"""A run as a picture. Needs matplotlib, an optional dependency: import this module only where a plot was asked for.

Must not know: how numbers were computed, how requests were sent.
"""

from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layered_llm.client.bench.records import RequestRecord, RunRecord


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
        axes.set(xlabel="milliseconds", ylabel="share of samples", xlim=(0, None), ylim=(0, 1.01))
        axes.grid(alpha=0.3)
    for axes in (latencies, gaps, timeline):
        if axes.has_data():
            axes.legend(loc="lower right")  # where neither shares nor requests, one above the other, have drawn much
    figure.suptitle(title)
    figure.savefig(path)


def _draw_shares(axes: Axes, label: str, sample_s: Iterable[float | None]) -> None:
    values_ms = sorted(value * 1e3 for value in sample_s if value is not None)
    if values_ms:
        axes.ecdf(values_ms, label=label)


def _draw_timeline(axes: Axes, run: RunRecord) -> None:
    """One bar per request: waiting for its first token, then receiving."""
    origin_s = min((record.due_s for record in run.requests), default=0.0)
    completed = [record for record in run.requests if record.failure is None]
    failed = [record for record in run.requests if record.failure is not None]
    _draw_bars(
        axes, "waiting", "tab:orange", [(record.index, record.due_s, _first_s(record)) for record in completed], origin_s
    )
    _draw_bars(
        axes, "receiving", "tab:blue", [(record.index, _first_s(record), record.ended_s) for record in completed], origin_s
    )
    _draw_bars(axes, "failed", "tab:red", [(record.index, record.due_s, record.ended_s) for record in failed], origin_s)
    axes.set(xlabel="seconds", ylabel="request")


def _draw_bars(axes: Axes, label: str, color: str, bars: list[tuple[int, float, float]], origin_s: float) -> None:
    if bars:
        rows, starts_s, ends_s = zip(*bars, strict=True)
        axes.hlines(rows, [at - origin_s for at in starts_s], [at - origin_s for at in ends_s], color=color, label=label)


def _first_s(record: RequestRecord) -> float:
    return record.chunk_times_s[0] if record.chunk_times_s else record.ended_s
