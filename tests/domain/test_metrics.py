from collections import Counter

import attrs

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.metrics import Histogram, Measured, Metric, counter, gauge, gauges_of, histogram, metrics_of


def test_buckets_are_cumulative_and_bounds_inclusive() -> None:
    figure = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        figure.observe(value)

    assert (
        ('_bucket{le="0.1"}', 2.0),
        ('_bucket{le="1"}', 3.0),
        ('_bucket{le="+Inf"}', 4.0),
        ("_count", 4.0),
        ("_sum", 3.65),
    ) == figure.samples()


def test_one_observation_may_stand_for_several() -> None:
    figure = Histogram((1.0,))
    figure.observe(0.5, times=3)

    assert (('_bucket{le="1"}', 3.0), ('_bucket{le="+Inf"}', 3.0), ("_count", 3.0), ("_sum", 1.5)) == figure.samples()


@attrs.define(kw_only=True)
class Figures:
    rows: int = counter("rows_total", "Rows.")
    uncounted: int = 0
    finished: Counter[FinishReason] = counter("ends_total", "Ends.", label="reason")
    now: int = gauge("now", "rows_now", "Rows at present.")
    hidden: int = gauge("hidden")
    _time: Histogram = histogram("time_seconds", "Time.", (1.0,))


def test_an_object_tells_what_its_class_declares() -> None:
    figures = Figures(now=3, hidden=4)
    figures.rows += 2
    figures.finished[FinishReason.STOP] += 1

    assert (
        Measured(Metric("rows_total", "counter", "Rows."), (("", 2.0),)),
        Measured(Metric("ends_total", "counter", "Ends."), (('{reason="stop"}', 1.0),)),
        Measured(Metric("rows_now", "gauge", "Rows at present."), (("", 3.0),)),
        Measured(Metric("time_seconds", "histogram", "Time."), Histogram((1.0,)).samples()),
    ) == metrics_of(figures)
    assert (("now", 3), ("hidden", 4)) == gauges_of(figures)
