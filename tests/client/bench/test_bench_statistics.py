import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layered_llm.client.bench.records import Failure
from layered_llm.client.bench.statistics import (
    Distribution,
    ErrorCount,
    TokenCounts,
    count_errors,
    count_tokens,
    describe,
    percentile,
    summarize,
)
from support.client_bench import make_record, make_run, make_usage


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 15.0), (5, 16.0), (30, 23.0), (40, 29.0), (50, 35.0), (90, 46.0), (99, 49.6), (100, 50.0)]
)
def test_percentiles_against_known_values(percent: float, expected: float) -> None:
    assert expected == pytest.approx(percentile([15.0, 20.0, 35.0, 40.0, 50.0], percent))


def test_percentile_of_one_value() -> None:
    assert 7.0 == percentile([7.0], 99)


@given(sample=st.lists(st.floats(0, 1e6), min_size=1, max_size=50), percent=st.sampled_from([50, 90, 99]))
def test_percentiles_agree_with_numpy(sample: list[float], percent: float) -> None:
    assert np.percentile(sample, percent) == pytest.approx(percentile(sorted(sample), percent))


def test_distribution_of_one_to_a_hundred() -> None:
    expected = Distribution(count=100, mean=50.5, p50=50.5, p90=90.1, p99=99.01, max=100.0)

    actual = describe(float(value) for value in reversed(range(1, 101)))
    assert actual is not None
    assert (expected.count, expected.max) == (actual.count, actual.max)
    assert (expected.mean, expected.p50, expected.p90, expected.p99) == pytest.approx(
        (actual.mean, actual.p50, actual.p90, actual.p99)
    )


def test_missing_values_are_no_zeros() -> None:
    distribution = describe([None, 2.0, None])

    assert Distribution(count=1, mean=2.0, p50=2.0, p90=2.0, p99=2.0, max=2.0) == distribution


def test_nothing_to_describe() -> None:
    assert describe([None]) is None


def test_latencies_count_from_when_the_request_was_due() -> None:
    record = make_record(due_s=10.0, sent_s=12.0, chunks_s=(13.0, 13.5, 15.0), ended_s=16.0)

    assert (3.0, 6.0, (0.5, 1.5)) == (record.first_token_s, record.end_to_end_s, record.gaps_s)


def test_time_per_output_token_takes_tokens_from_usage_and_not_from_chunks() -> None:
    record = make_record(chunks_s=(1.0, 2.0, 3.0), ended_s=9.0, usage=make_usage(completion=11))

    assert 0.2 == record.per_output_token_s


@pytest.mark.parametrize(
    ("chunks_s", "completion"),
    [((1.0, 2.0), None), ((1.0, 2.0), 1), ((1.0,), 10), ((), 10)],
    ids=["usage", "token", "chunk", "none"],
)
def test_time_per_output_token_is_unknown_without(chunks_s: tuple[float, ...], completion: int | None) -> None:
    usage = None if completion is None else make_usage(completion=completion)

    assert make_record(chunks_s=chunks_s, usage=usage).per_output_token_s is None


def test_tokens_are_summed_over_the_requests_with_usage() -> None:
    records = [make_record(), make_record(usage=make_usage(prompt=5, completion=3, cached=4)), make_record(usage=make_usage())]

    assert TokenCounts(requests=2, prompt=15, cached=4, output=5) == count_tokens(records)


def test_unknown_cached_tokens_are_no_zero() -> None:
    assert count_tokens([make_record(usage=make_usage())]).cached is None


def test_errors_are_counted_by_kind_with_the_first_message() -> None:
    kinds = [("b", "1"), ("a", "2"), ("b", "3")]
    records = [make_record(failure=Failure(kind=kind, message=message)) for kind, message in kinds]

    expected = (ErrorCount(kind="b", count=2, example="1"), ErrorCount(kind="a", count=1, example="2"))
    assert expected == count_errors([make_record(), *records])


def test_summary_keeps_failed_requests_out_of_rates_and_latencies() -> None:
    good = make_record(chunks_s=(0.5, 1.0), ended_s=1.0, usage=make_usage(prompt=30, completion=4))
    bad = make_record(chunks_s=(9.0,), ended_s=99.0, usage=make_usage(), failure=Failure(kind="k", message="m"))
    summary = summarize(make_run(good, bad, duration_s=2.0, aborted=3, interrupted=True))

    assert (1, 1, 3, 2, True) == (
        summary.completed,
        summary.failed,
        summary.aborted,
        summary.peak_open,
        summary.interrupted,
    )
    assert (0.5, 15.0, 2.0) == (summary.requests_per_s, summary.prompt_tokens_per_s, summary.output_tokens_per_s)
    assert describe([0.5]) == summary.time_to_first_token_s
    assert describe([1.0]) == summary.end_to_end_s


def test_summary_of_nothing() -> None:
    summary = summarize(make_run(duration_s=0.0))

    assert (0, 0.0, None) == (summary.completed, summary.output_tokens_per_s, summary.end_to_end_s)
