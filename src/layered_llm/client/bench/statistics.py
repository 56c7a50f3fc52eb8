"""Numbers out of a run: distributions of latencies, and throughput.

Must not know: where records come from, how numbers are shown.

Tokens are the server's own counts (`usage`); chunks are never counted as tokens. Latencies are those of completed requests.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from layered_llm.client.bench.records import RequestRecord, RunRecord


@attrs.frozen(kw_only=True)
class Distribution:
    """Of a non-empty sample, in seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@attrs.frozen(kw_only=True)
class TokenCounts:
    """Sums over the completed requests for which the server sent its counts."""

    requests: int
    prompt: int
    cached: int | None
    """Prompt tokens out of a prefix cache; None when the server does not say."""
    output: int


@attrs.frozen(kw_only=True)
class ErrorCount:
    """Failures of one kind."""

    kind: str
    count: int
    example: str
    """The first message of this kind."""


@attrs.frozen(kw_only=True)
class Summary:
    """One run in numbers; a distribution is None when there is nothing to describe."""

    duration_s: float
    completed: int
    failed: int
    aborted: int
    peak_open: int
    interrupted: bool
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    tokens: TokenCounts
    time_to_first_token_s: Distribution | None
    gap_between_chunks_s: Distribution | None
    time_per_output_token_s: Distribution | None
    end_to_end_s: Distribution | None
    client_lag_s: Distribution | None
    """How late the client sent what was due: where this is not small, the client was the bottleneck."""
    errors: tuple[ErrorCount, ...]
    """Most frequent first."""


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between closest ranks of a sorted, non-empty sample (Hyndman and Fan 1996, type 7)."""
    rank = (len(ordered) - 1) * percent / 100
    low, high = math.floor(rank), math.ceil(rank)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def describe(sample: Iterable[float | None]) -> Distribution | None:
    """The distribution of the values that are there."""
    ordered = sorted(value for value in sample if value is not None)
    if not ordered:
        return None
    return Distribution(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def summarize(run: RunRecord) -> Summary:
    """The numbers of a run, which may be empty or cut short."""
    completed = [record for record in run.requests if record.failure is None]
    tokens = count_tokens(completed)
    return Summary(
        duration_s=run.duration_s,
        completed=len(completed),
        failed=len(run.requests) - len(completed),
        aborted=run.aborted,
        peak_open=run.peak_open,
        interrupted=run.interrupted,
        requests_per_s=_rate(len(completed), run.duration_s),
        prompt_tokens_per_s=_rate(tokens.prompt, run.duration_s),
        output_tokens_per_s=_rate(tokens.output, run.duration_s),
        tokens=tokens,
        time_to_first_token_s=describe(record.first_token_s for record in completed),
        gap_between_chunks_s=describe(gap for record in completed for gap in record.gaps_s),
        time_per_output_token_s=describe(record.per_output_token_s for record in completed),
        end_to_end_s=describe(record.end_to_end_s for record in completed),
        client_lag_s=describe(record.sent_s - record.due_s for record in run.requests),
        errors=count_errors(run.requests),
    )


def count_tokens(records: Iterable[RequestRecord]) -> TokenCounts:
    usages = [record.usage for record in records if record.usage is not None]
    cached = [usage.cached_tokens for usage in usages if usage.cached_tokens is not None]
    return TokenCounts(
        requests=len(usages),
        prompt=sum(usage.prompt_tokens for usage in usages),
        cached=sum(cached) if cached else None,
        output=sum(usage.completion_tokens for usage in usages),
    )


def count_errors(records: Iterable[RequestRecord]) -> tuple[ErrorCount, ...]:
    failures = [record.failure for record in records if record.failure is not None]
    examples = {failure.kind: failure.message for failure in reversed(failures)}
    counts = Counter(failure.kind for failure in failures)
    return tuple(ErrorCount(kind=kind, count=count, example=examples[kind]) for kind, count in counts.most_common())


def _rate(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
