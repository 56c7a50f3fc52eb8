"""What the scheduler's loop measures: how long requests wait, and how full steps are.

Must not know: clocks, how a figure is shown.
"""

from typing import Final

import attrs

from layered_llm.service.histogram import TTFT_BUCKETS_S, Histogram

FILL_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0)


@attrs.define(eq=False)
class SchedulerFigures:
    """Histograms since the start of the scheduler."""

    _max_step_tokens: int
    _queue_time: Histogram = attrs.field(init=False, factory=lambda: Histogram(TTFT_BUCKETS_S))
    _step_fill: Histogram = attrs.field(init=False, factory=lambda: Histogram(FILL_BUCKETS))

    def planned(self, *, tokens: int, waited_us: tuple[int, ...]) -> None:
        """A step was sent, the first one for requests that waited this long."""
        if tokens:  # a step without any only tells the runtime which slots are retired
            self._step_fill.observe(tokens / self._max_step_tokens)
        for wait_us in waited_us:
            self._queue_time.observe(wait_us / 1e6)

    def samples(self) -> tuple[tuple[str, float], ...]:
        """Prometheus samples."""
        return (
            *self._queue_time.samples("layered_llm_queue_time_seconds"),
            *self._step_fill.samples("layered_llm_step_fill_ratio"),
        )
