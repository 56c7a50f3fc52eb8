"""A run for people (an aligned table) and for programs (JSON).

Must not know: how numbers were computed, files.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from layered_llm.client.bench.records import RequestRecord, RunRecord
from layered_llm.client.bench.statistics import Distribution, Summary

_COLUMNS: Final = ("mean", "p50", "p90", "p99", "max")
_LABEL_WIDTH: Final = 28
_NOTICEABLE_LAG_S: Final = 0.01
_NOTE: Final = (
    "Tokens are the server's own counts. A chunk may hold several tokens: gaps are between chunks, not tokens.\n"
    "Latencies are those of completed requests."
)


def report_text(title: str, summary: Summary) -> str:
    """The whole report, without a line end at the end."""
    sections = [_overview(title, summary), _latencies(summary)]
    if summary.errors:
        sections.append(_errors(summary))
    return "\n\n".join([*sections, _NOTE])


def report_json(settings: Mapping[str, Any], run: RunRecord, summary: Summary) -> dict[str, Any]:
    """Settings, summary and one entry per request; all times in seconds, those of requests since the first one was due."""
    origin_s = min((record.due_s for record in run.requests), default=0.0)
    return {
        "settings": dict(settings),
        "summary": attrs.asdict(summary),
        "requests": [_request_json(record, origin_s) for record in sorted(run.requests, key=lambda record: record.index)],
    }


def _overview(title: str, summary: Summary) -> str:
    tokens = summary.tokens
    counts = f"{summary.completed} completed, {summary.failed} failed, {summary.aborted} aborted"
    cached = "" if tokens.cached is None else f", {tokens.cached} of these cached"
    rows = [
        ("requests", f"{counts}; at most {summary.peak_open} at once"),
        ("duration", f"{summary.duration_s:.2f} s" + (", interrupted" if summary.interrupted else "")),
        ("throughput", f"{summary.requests_per_s:.2f} requests/s"),
    ]
    if tokens.requests:
        rows += [
            ("", f"{summary.output_tokens_per_s:.1f} output tokens/s"),
            ("", f"{summary.prompt_tokens_per_s:.1f} prompt tokens/s"),
            ("tokens", f"{tokens.output} output, {tokens.prompt} prompt{cached}"),
        ]
    if tokens.requests < summary.completed:
        rows.append(("", f"the server sent no token counts for {summary.completed - tokens.requests} requests"))
    lag = summary.client_lag_s
    if lag is not None and lag.p99 > _NOTICEABLE_LAG_S:
        rows.append(("client lag", f"p99 {lag.p99 * 1e3:.1f} ms: this machine could not send as fast as asked"))
    return "\n".join([title, "", *(f"{label:<12}{text}" for label, text in rows)])


def _latencies(summary: Summary) -> str:
    rows = [
        ("time to first token", summary.time_to_first_token_s),
        ("gap between chunks", summary.gap_between_chunks_s),
        ("time per output token", summary.time_per_output_token_s),
        ("end to end", summary.end_to_end_s),
    ]
    header = f"{'milliseconds':<{_LABEL_WIDTH}}" + "".join(f"{column:>11}" for column in _COLUMNS)
    return "\n".join([header, *(_latency_row(label, distribution) for label, distribution in rows)])


def _latency_row(label: str, distribution: Distribution | None) -> str:
    cells = ["-"] * len(_COLUMNS) if distribution is None else _cells(distribution)
    return f"{label:<{_LABEL_WIDTH}}" + "".join(f"{cell:>11}" for cell in cells)


def _cells(distribution: Distribution) -> Sequence[str]:
    return [f"{getattr(distribution, column) * 1e3:.2f}" for column in _COLUMNS]


def _errors(summary: Summary) -> str:
    width = max(len(error.kind) for error in summary.errors)
    lines = (f"{error.count:>6}  {error.kind:<{width}}  {_one_line(error.example)}" for error in summary.errors)
    return "\n".join(["errors", *lines])


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:99]}…"


def _request_json(record: RequestRecord, origin_s: float) -> dict[str, Any]:
    return {
        "index": record.index,
        "due_s": record.due_s - origin_s,
        "sent_s": record.sent_s - origin_s,
        "chunks_s": [time_s - origin_s for time_s in record.chunk_times_s],
        "ended_s": record.ended_s - origin_s,
        "usage": None if record.usage is None else attrs.asdict(record.usage),
        "error": None if record.failure is None else attrs.asdict(record.failure),
    }
