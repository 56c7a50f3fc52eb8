"""What `benchmarks.compare` measured, as tables, JSON and a picture."""

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import attrs
from benchmarks.compare_bare import BareResult, Case, limit_tokens_per_s, median_rates, same_texts
from benchmarks.compare_engines import LLAMA, OURS
from benchmarks.compare_http import RUNTIME_ALONE, HttpResult
from benchmarks.compare_settings import Plan
from benchmarks.machine import Machine

REFERENCE: Final = "transformers fp32"
LLAMA_BEST: Final = "llama.cpp, its best"
NOTHING: Final = "-"


def tables(bare: BareResult, http: HttpResult) -> str:
    parts = [_bare_table(bare), _ratio_table(bare), _http_table(http), _left_out({**bare.left_out, **http.left_out})]
    return "\n\n".join(part for part in parts if part)


def _bare_table(bare: BareResult) -> str:
    if not bare.samples:
        return ""
    header = ["tokens/s (of the limit)", *(case.name for case in bare.cases), "same text", "others"]
    rows = [header]
    for name, samples in bare.samples.items():
        cells = [_rate(bare, name, case) for case in bare.cases]
        same = same_texts(bare, name, REFERENCE)
        others = statistics.median(sample.others_cores for done in samples.values() for sample in done)
        rows.append([name, *cells, NOTHING if same is None else f"{same[0]} of {same[1]}", f"{others:.1f}"])
    return f"{_aligned(rows)}\n{_limit(bare)}"


def _limit(bare: BareResult) -> str:
    if not bare.rates:
        return "limit: not measured"
    rates = median_rates(bare.rates)
    read = sorted(one.read_bytes_per_s / 1e9 for one in bare.rates)
    flops = sorted(one.flops_per_s / 1e9 for one in bare.rates)
    return (
        f"limit: memory read at {rates.read_bytes_per_s / 1e9:.1f} GB/s ({read[0]:.1f} - {read[-1]:.1f}), "
        f"fp32 multiplied and added at {rates.flops_per_s / 1e9:.0f} GFLOP/s ({flops[0]:.0f} - {flops[-1]:.0f})"
    )


def _rate(bare: BareResult, name: str, case: Case) -> str:
    samples = bare.samples[name].get(case.name, [])
    if not samples:
        return NOTHING
    rate = statistics.median(sample.tokens_per_s for sample in samples)
    if not bare.rates:
        return f"{rate:.1f}"
    limit = limit_tokens_per_s(bare.work[name][case.name], median_rates(bare.rates))
    return f"{rate:.1f} ({rate / limit:.2f})"


def _ratio_table(bare: BareResult) -> str:
    peers = [name for name in bare.samples if name != OURS]
    rows = [["ours / it", *(case.name for case in bare.cases)]]
    rows += [[name, *(_spread(ratios(bare, case, [name])) for case in bare.cases)] for name in peers]
    llamas = [name for name in peers if name.startswith(LLAMA)]
    if llamas:
        rows.append([LLAMA_BEST, *(_spread(ratios(bare, case, llamas)) for case in bare.cases)])
    return _aligned(rows) if len(rows) > 1 and OURS in bare.samples else ""


def rounds_done(samples: Mapping[str, Mapping[Any, Sequence[Any]]]) -> int:
    """Of whoever was measured most often."""
    return max((len(done) for one in samples.values() for done in one.values()), default=0)


def ratios(bare: BareResult, case: Case, peers: Sequence[str]) -> list[float]:
    """Ours by the fastest of `peers`, round by round."""
    own = bare.samples.get(OURS, {}).get(case.name, [])
    measured = [bare.samples[peer][case.name] for peer in peers if case.name in bare.samples[peer]]
    rounds = zip_longest(*measured)  # one that failed is missing in the later ones
    best = [max(sample.tokens_per_s for sample in samples if sample is not None) for samples in rounds]
    return [mine.tokens_per_s / other for mine, other in zip(own, best, strict=False)]


def _http_table(http: HttpResult) -> str:
    measured = [name for name, samples in http.samples.items() if any(samples.values())]
    if not measured:
        return ""
    rows = [["HTTP", *(f"{clients} at a time" for clients in http.batches), "start, s", "others"]]
    rows.append(["", *("tok/s  TTFT ms  gap ms" for _ in http.batches), "", ""])
    for name in measured:
        samples = http.samples[name]
        cells = [_http_cell(samples.get(clients, [])) for clients in http.batches]
        others = statistics.median(sample.others_cores for done in samples.values() for sample in done)
        start = f"{http.start_s[name]:.1f}" if name in http.start_s else ""
        rows.append([name, *cells, start, f"{others:.1f}"])
    for name in measured:
        if name != OURS and OURS in measured:
            cells = [_spread(http_ratios(http, clients, name)) for clients in http.batches]
            rows.append([f"ours / {name}", *cells, "", ""])
    return _aligned(rows)


def _http_cell(samples: Sequence[Any]) -> str:
    if not samples:
        return NOTHING
    rate = f"{statistics.median(sample.tokens_per_s for sample in samples):.1f}"
    first = _median_ms(sample.first_token_ms for sample in samples)
    gap = _median_ms(sample.gap_ms for sample in samples)
    return f"{rate} {first:>8} {gap:>7}"


def _median_ms(times_ms: Iterable[float | None]) -> str:
    known = [one for one in times_ms if one is not None]
    return f"{statistics.median(known):.0f}" if known else NOTHING


def http_ratios(http: HttpResult, clients: int, other: str) -> list[float]:
    """Ours by another server, or by our runtime alone, round by round; where it was measured once, by that."""
    own = [sample.tokens_per_s for sample in http.samples.get(OURS, {}).get(clients, [])]
    theirs = [sample.tokens_per_s for sample in http.samples[other].get(clients, [])]
    theirs = theirs * len(own) if len(theirs) == 1 else theirs
    return [mine / rate for mine, rate in zip(own, theirs, strict=False)]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return NOTHING
    return f"{statistics.median(values):.2f} ({min(values):.2f} - {max(values):.2f})"


def _left_out(reasons: dict[str, str]) -> str:
    return "\n".join(f"left out: {name}: {reason}" for name, reason in reasons.items())


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def report_json(machine: Machine, plan: Plan, bare: BareResult, http: HttpResult) -> dict[str, Any]:
    return {
        "machine": attrs.asdict(machine),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "settings": attrs.asdict(plan),
        "bare": attrs.asdict(bare),
        "bare_ratios": {
            case.name: {name: ratios(bare, case, [name]) for name in bare.samples if name != OURS} for case in bare.cases
        },
        "http": attrs.asdict(http),
        "http_ratios": {
            str(clients): {name: http_ratios(http, clients, name) for name in http.samples if name != OURS}
            for clients in http.batches
        },
    }


def save_plot(title: str, bare: BareResult, http: HttpResult, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(14, 9), layout="constrained")
    halves: Any = figure.subfigures(2, 1)
    upper, lower = halves
    for axes, case in zip(upper.subplots(1, len(bare.cases)), bare.cases, strict=True):
        _draw_bars(axes, case.name, bare.samples, _rates_of(case.name))
    for axes, clients in zip(lower.subplots(1, len(http.batches), squeeze=False)[0], http.batches, strict=True):
        served = {name: samples for name, samples in http.samples.items() if name != RUNTIME_ALONE}
        _draw_bars(axes, f"HTTP, {clients} at a time", served, _rates_of(clients))
        rates = _rates_of(clients)(http.samples.get(RUNTIME_ALONE, {}))
        if rates:
            axes.axvline(statistics.median(rates), color="tab:gray", linestyle="--", label=RUNTIME_ALONE)
            axes.set_xlim(0, max(axes.get_xlim()[1], 1.05 * statistics.median(rates)))
            axes.legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path)


def _rates_of(key: Any) -> Callable[[Any], list[float]]:
    return lambda samples: [sample.tokens_per_s for sample in samples.get(key, [])]


def _draw_bars(axes: Any, title: str, samples: dict[str, Any], rates_of: Callable[[Any], Iterable[float]]) -> None:
    """Medians as bars, each round as a dot."""
    measured = {name: rates for name, one in reversed(samples.items()) if (rates := [*rates_of(one)])}
    colours = ["tab:blue" if name == OURS else "tab:orange" for name in measured]
    axes.barh([*measured], [statistics.median(rates) for rates in measured.values()], color=colours, alpha=0.7)
    for row, rates in enumerate(measured.values()):
        axes.scatter(rates, [row] * len(rates), s=8, color="black", zorder=3)
    axes.set(xlabel="tokens/s", title=title, xlim=(0, None))
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(axis="x", alpha=0.3)
