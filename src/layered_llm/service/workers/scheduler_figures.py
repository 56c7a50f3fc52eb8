"""What the scheduler's loop measures: how long requests wait, how full steps are, how soon an aborted request holds nothing.

Must not know: clocks, how a figure is shown.
"""

from typing import Final

import attrs

from layered_llm.domain.messages.supervision import AbortTally, Role, StateReport
from layered_llm.domain.metrics import (
    LATENCY_BUCKETS_S,
    MESSAGES_DROPPED,
    TTFT_BUCKETS_S,
    Histogram,
    counter,
    gauges_of,
    histogram,
    metrics_of,
)
from layered_llm.scheduling.emission import Effects
from layered_llm.scheduling.statistics import SchedulerStatistics

FILL_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0)

STEP_TOKEN_BUCKETS: Final = (1.0, *(float(1 << power) for power in range(3, 15)))

PREEMPTION_BUCKETS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)

RELEASE_BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0),
)
RELEASE_STEP_BUCKETS: Final = (0.0, 1.0, 2.0)


@attrs.define(eq=False)
class SchedulerFigures:
    """Since the start of the scheduler."""

    _max_step_tokens: int
    messages_dropped: int = counter(MESSAGES_DROPPED)
    """On the socket for text workers, from others."""
    _queue_time: Histogram = histogram(
        "queue_time_seconds", "From the queueing of a request to the first step that computes some of it.", TTFT_BUCKETS_S
    )
    _prefill_time: Histogram = histogram(
        "request_prefill_time_seconds",
        "From the first step that computes some of a request to its first token.",
        TTFT_BUCKETS_S,
    )
    _step_fill: Histogram = histogram(
        "step_fill_ratio", "Tokens that a step computes, as a part of the most that it may.", FILL_BUCKETS
    )
    _step_tokens: Histogram = histogram("step_tokens", "Tokens that a step computes.", STEP_TOKEN_BUCKETS)
    _new_tokens: Histogram = histogram(
        "step_new_tokens", "Tokens that a step is the first to compute, of prompts, or to sample.", STEP_TOKEN_BUCKETS
    )
    _inference_time: Histogram = histogram(
        "request_inference_time_seconds", "From the first step that computes some of a request to its end.", LATENCY_BUCKETS_S
    )
    _preemptions: Histogram = histogram(
        "request_preemptions", "How often choices of a request that ended were put back.", PREEMPTION_BUCKETS
    )
    _release_time: Histogram = histogram(
        "abort_release_seconds", "From an abort in the scheduler until its request's pages are all back.", RELEASE_BUCKETS_S
    )
    _release_steps: Histogram = histogram(
        "abort_release_steps", "Steps in flight that these pages had to wait for.", RELEASE_STEP_BUCKETS
    )

    def planned(self, *, tokens: int, waited_us: tuple[int, ...]) -> None:
        """A step was sent, the first one for requests that waited this long."""
        if tokens:  # a step without any only retires slots
            self._step_fill.observe(tokens / self._max_step_tokens)
            self._step_tokens.observe(tokens)
        for wait_us in waited_us:
            self._queue_time.observe(wait_us / 1e6)

    def came_about(self, effects: Effects, now_us: int) -> None:
        """What came of a message or of a step's result, now."""
        if effects.new_tokens:
            self._new_tokens.observe(effects.new_tokens)
        for time_us in effects.prefill_us:
            self._prefill_time.observe(time_us / 1e6)
        for time_us, preemptions in effects.ended:
            self._inference_time.observe(time_us / 1e6)
            self._preemptions.observe(preemptions)
        for release in effects.releases:
            self._release_time.observe((now_us - release.aborted_us) / 1e6)
            self._release_steps.observe(release.steps)

    def report(self, statistics: SchedulerStatistics, violations: tuple[str, ...], *, query: int, pid: int) -> StateReport:
        """With these figures, the state of the scheduler's process at this moment."""
        aborts = statistics.aborts_taken
        return StateReport(
            query=query,
            role=Role.SCHEDULER,
            index=0,
            pid=pid,
            open_requests=statistics.open_requests,
            maps=statistics.maps,
            gauges=gauges_of(statistics),
            metrics=(*metrics_of(statistics), *metrics_of(statistics.counters), *metrics_of(self)),
            violations=violations,
            aborts_taken=tuple(AbortTally(peer=Role.TEXT, index=text, aborts=count) for text, count in aborts),
        )
