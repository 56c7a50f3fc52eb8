"""Latency histograms as Prometheus counts them: cumulative buckets, which add up over processes.

Must not know: clocks, what is measured.
"""

import bisect
from typing import Final

import attrs

LATENCY_BUCKETS_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_BUCKETS_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BUCKETS_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)


@attrs.define
class Histogram:
    """Counts of observations, each in the first bucket whose upper bound it does not exceed."""

    _bounds: tuple[float, ...]
    _counts: list[int] = attrs.field(init=False)
    _sum: float = 0.0

    def __attrs_post_init__(self) -> None:
        self._counts = [0] * (len(self._bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Adds `times` observations of `value`."""
        self._counts[bisect.bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def samples(self, name: str) -> tuple[tuple[str, float], ...]:
        """Prometheus samples: `name_bucket{le=…}` cumulative, `name_sum`, `name_count`."""
        labels = [f"{bound:g}" for bound in self._bounds] + ["+Inf"]
        total, buckets = 0, []
        for label, count in zip(labels, self._counts, strict=True):
            total += count
            buckets.append((f'{name}_bucket{{le="{label}"}}', float(total)))
        return (*buckets, (f"{name}_sum", self._sum), (f"{name}_count", float(total)))
