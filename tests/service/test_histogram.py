from layered_llm.service.histogram import Histogram


def test_buckets_are_cumulative_and_bounds_inclusive() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(value)

    assert (
        ('x_bucket{le="0.1"}', 2.0),
        ('x_bucket{le="1"}', 3.0),
        ('x_bucket{le="+Inf"}', 4.0),
        ("x_sum", 3.65),
        ("x_count", 4.0),
    ) == histogram.samples("x")


def test_one_observation_may_stand_for_several() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, times=3)

    assert (('x_bucket{le="1"}', 3.0), ('x_bucket{le="+Inf"}', 3.0), ("x_sum", 1.5), ("x_count", 3.0)) == histogram.samples("x")
