"""What simulated runs came to: one row of figures for each, as a table and as a picture."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
from benchmarks.simulated_engine import Outcome
from benchmarks.simulated_traffic import URGENT

from layered_llm.client.bench.statistics import Distribution, describe

COLUMNS: Final = {
    "TTFT p50": 9, "TTFT p90": 9, "TTFT p99": 9, "urgent": 7, "gap p50": 8, "gap p90": 8, "gap p99": 8, "cached": 7,
    "preempt": 8, "busy": 6,
}  # fmt: skip
"""Heads and widths, behind the policy and tokens/s."""


@attrs.frozen(kw_only=True)
class Row:
    """What one policy came to. Times are simulated ones."""

    policy: str
    output_tokens_per_s: float
    requests_per_s: float
    ttft_s: Distribution | None
    urgent_ttft_s: Distribution | None
    queue_s: Distribution | None
    gap_s: Distribution | None
    cached_share: float
    preemptions: int
    pages_evicted: int
    steps: int
    busy_share: float
    simulated_s: float
    wall_s: float


def row_of(name: str, outcome: Outcome, wall_s: float) -> Row:
    figures, end_s = outcome.statistics, outcome.end_us / 1e6
    done = [one for one in outcome.requests if one.token_us]
    firsts = [(one.token_us[0] - one.arrived_us, one.conversation.priority) for one in done]
    gaps = (after - before for one in done for before, after in itertools.pairwise(one.token_us))
    return Row(
        policy=name,
        output_tokens_per_s=sum(len(one.token_us) for one in done) / end_s,
        requests_per_s=len(done) / end_s,
        ttft_s=describe(first_us / 1e6 for first_us, _ in firsts),
        urgent_ttft_s=describe(first_us / 1e6 for first_us, priority in firsts if priority == URGENT),
        queue_s=describe(waited_us / 1e6 for waited_us in outcome.waited_us),
        gap_s=describe(gap_us / 1e6 for gap_us in gaps),
        cached_share=figures.counters.prefix_hit_tokens / max(1, figures.counters.prefix_lookup_tokens),
        preemptions=figures.counters.preemptions,
        pages_evicted=figures.pages_evicted,
        steps=figures.counters.steps,
        busy_share=outcome.busy_us / outcome.end_us,
        simulated_s=end_s,
        wall_s=wall_s,
    )


def table(rows: Sequence[Row]) -> str:
    """The first policy's name is long: it stands above the table, as "first"."""
    names = ["first", *(row.policy for row in rows[1:])]
    wide = max(map(len, (*names, "policy")))
    heads = f"{'policy':<{wide}} {'tokens/s':>9} " + " ".join(f"{head:>{width}}" for head, width in COLUMNS.items())
    lines = (line(name, wide, row) for name, row in zip(names, rows, strict=True))
    return "\n".join((f"first: {rows[0].policy}", "", heads, *lines))


def line(name: str, wide: int, row: Row) -> str:
    cells = (
        *parts_ms(row.ttft_s),
        parts_ms(row.urgent_ttft_s)[1],
        *parts_ms(row.gap_s),
        f"{row.cached_share:.0%}",
        str(row.preemptions),
        f"{row.busy_share:.0%}",
    )
    columns = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))
    return f"{name:<{wide}} {row.output_tokens_per_s:>9.1f} {columns}"


def parts_ms(sample: Distribution | None) -> tuple[str, str, str]:
    """p50, p90 and p99."""
    if sample is None:
        return ("-", "-", "-")
    p50, p90, p99 = (f"{1e3 * time_s:.{0 if time_s >= 0.1 else 1}f}" for time_s in (sample.p50, sample.p90, sample.p99))
    return (p50, p90, p99)


def save_plot(name: str, rows: Sequence[Row], path: Path) -> None:
    """Three groups of bars, one bar for each policy. Raises ValueError for a suffix that names no format."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(15, 1.8 + 0.45 * len(rows)), layout="constrained")
    throughput, ttft, gaps = figure.subplots(1, 3, sharey=True)
    places = list(range(len(rows)))
    throughput.barh(places, [row.output_tokens_per_s for row in rows], color="tab:gray")
    throughput.set(xlabel="output tokens/s", yticks=places, yticklabels=["first", *(row.policy for row in rows[1:])])
    throughput.invert_yaxis()
    for axes, label, samples in ((ttft, "time to first token", "ttft_s"), (gaps, "gap between tokens", "gap_s")):
        for offset, (part, color) in enumerate((("p50", "tab:green"), ("p90", "tab:orange"), ("p99", "tab:red"))):
            values = [1e3 * getattr(getattr(row, samples), part, 0.0) for row in rows]
            axes.barh([place + 0.27 * (offset - 1) for place in places], values, height=0.25, color=color, label=part)
        axes.set(xlabel=f"{label}, ms")
        axes.legend()
    figure.suptitle(f"{name}\nfirst: {rows[0].policy}", fontsize="small")
    figure.savefig(path)
