"""Figures that a process reports of itself, each declared once: where it is counted, with its name, its kind and its help.

Must not know: which figures there are, who reads them, clocks.

A class that counts declares its fields with `counter`, `gauge` and `histogram`, and `metrics_of` reads an object's.
"""

import bisect
import enum
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

PREFIX: Final = "layered_llm_"
_METRIC: Final = "metric"
_LABEL: Final = "label"
_GAUGE: Final = "gauge"

LATENCY_BUCKETS_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_BUCKETS_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)

Samples = tuple[tuple[str, float], ...]
"""Values by what follows the metric's name: a part of a histogram, labels, or nothing."""


@attrs.frozen
class Metric:
    """What a figure is."""

    name: str
    """Without the prefix."""
    kind: str
    """One of Prometheus' kinds: counter, gauge or histogram."""
    help: str


@attrs.frozen
class Measured:
    """A metric and its values in one process. A histogram's buckets come first, by rising bound, then its count and its sum."""

    metric: Metric
    samples: Samples

    @classmethod
    def of(cls, metric: Metric, value: float) -> "Measured":
        return cls(metric, (("", float(value)),))


ABORTS_EMITTED: Final = Metric(
    "aborts_emitted_total", "counter", "Aborts that API processes sent: requests whose scope was left early."
)
ABORTS_HANDLED: Final = Metric(
    "aborts_handled_total", "counter", "Aborts that ended a request, in a text worker or in the scheduler."
)
ABORTS_LATE: Final = Metric("aborts_late_total", "counter", "Aborts that found their request already ended.")
ABORTS_LOST: Final = Metric(
    "aborts_lost_total", "counter", "Aborts to an engine that has ended since, and with it what it counted of them."
)
MESSAGES_DROPPED: Final = Metric(
    "messages_dropped_total", "counter", "Messages on a process's sockets that were none of this server's."
)
"""These are counted by several processes, and their sums compared."""


@attrs.define
class Histogram:
    """Counts of observations, each in the first bucket whose upper bound it does not exceed; they add up over processes."""

    _bounds: tuple[float, ...]
    _counts: list[int] = attrs.field(init=False)
    _sum: float = 0.0

    def __attrs_post_init__(self) -> None:
        self._counts = [0] * (len(self._bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Adds `times` observations of `value`."""
        self._counts[bisect.bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def samples(self) -> Samples:
        """`_bucket{le=…}` cumulative, `_count`, `_sum`."""
        labels = [f"{bound:g}" for bound in self._bounds] + ["+Inf"]
        total, buckets = 0, []
        for label, count in zip(labels, self._counts, strict=True):
            total += count
            buckets.append((f'_bucket{{le="{label}"}}', float(total)))
        return (*buckets, ("_count", float(total)), ("_sum", self._sum))


def counter(metric: Metric | str, help_text: str = "", *, label: str = "", factory: Callable[[], Any] | None = None) -> Any:
    """A field that only grows: a number, or numbers by the value of `label`, in a Counter unless `factory` makes them."""
    declared = metric if isinstance(metric, Metric) else Metric(metric, "counter", help_text)
    return attrs.field(factory=factory or (Counter if label else int), metadata={_METRIC: declared, _LABEL: label})


def gauge(name: str, metric: str = "", help_text: str = "") -> Any:
    """A field of the moment, called `name` in a state report; one without `metric` is shown there alone."""
    declared = Metric(metric, "gauge", help_text) if metric else None
    return attrs.field(metadata={_GAUGE: name, _METRIC: declared, _LABEL: ""})


def histogram(name: str, help_text: str, bounds: tuple[float, ...]) -> Any:
    """A field that is a Histogram; `bounds` rise."""
    metadata = {_METRIC: Metric(name, "histogram", help_text), _LABEL: ""}
    return attrs.field(init=False, factory=lambda: Histogram(bounds), metadata=metadata)


def metrics_of(figures: Any) -> tuple[Measured, ...]:
    """The metrics that an object's class declares, in this order."""
    declared = ((field, field.metadata.get(_METRIC)) for field in attrs.fields(type(figures)))
    return tuple(
        Measured(metric, _samples(getattr(figures, field.name), field.metadata[_LABEL]))
        for field, metric in declared
        if metric is not None
    )


def gauges_of(figures: Any) -> tuple[tuple[str, int], ...]:
    """An object's gauges by their names in a state report."""
    fields = attrs.fields(type(figures))
    return tuple((field.metadata[_GAUGE], getattr(figures, field.name)) for field in fields if _GAUGE in field.metadata)


def _samples(value: Histogram | Mapping[Any, float] | float, label: str) -> Samples:
    match value:
        case Histogram():
            return value.samples()
        case Mapping():
            return tuple((f'{{{label}="{_word(key)}"}}', float(count)) for key, count in value.items())
        case _:
            return (("", float(value)),)


def _word(key: Any) -> str:
    return key.name.lower() if isinstance(key, enum.Enum) else str(key)
