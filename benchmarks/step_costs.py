"""What the steps of a real server cost: a device for the simulator, fitted to the steps in a trace file.

The time of a step is taken for a sum, as in `DeviceCost`. Its parts are those, none below zero, for which the sum of the
relative errors is least: a step that another program held up counts no more than others, and a short step as much as a long
one. Found by reweighted least squares, each exactly: the best of all choices of parts that are not zero whose solution has none
below.
"""

import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from benchmarks.simulated_engine import DeviceCost
from numpy.typing import NDArray

PARTS: Final = ("step_us", "prefill_token_us", "decode_row_us", "context_row_us", "context_pair_us")
REWEIGHTINGS: Final = 25
LEAST_STEPS: Final = 20


class TraceFileError(Exception):
    """The file is no trace of a server, or of too few steps; the text says which."""


@attrs.frozen(kw_only=True)
class TracedStep:
    """One step with rows, and what its time depends on."""

    device_us: int
    span_us: float
    """From when it was sent, or the step before it was back, until it was back."""
    after_pause: bool
    """Nothing was in flight when it was sent."""
    prefill_tokens: int
    decode_rows: int
    context_rows: int
    """Tokens in front of each row."""
    context_pairs: int
    """Tokens in front of a row for each of its tokens."""

    @property
    def amounts(self) -> tuple[int, ...]:
        """Of each of `PARTS`."""
        return (1, self.prefill_tokens, self.decode_rows, self.context_rows, self.context_pairs)


@attrs.frozen(kw_only=True)
class Calibration:
    """A device, and how well it tells the times that it was made of."""

    cost: DeviceCost
    steps: int
    median_error: float
    """Relative; half of the steps are told better."""
    p90_error: float
    total_ratio: float
    """All predicted times together by all measured ones."""

    def __str__(self) -> str:
        parts = ", ".join(f"--{name.replace('_', '-')} {getattr(self.cost, name):.4g}" for name in (*PARTS, "host_us"))
        return (
            f"fitted to {self.steps} steps: {parts}\n"
            f"error of a step: median {self.median_error:.1%}, p90 {self.p90_error:.1%}; "
            f"all steps together: {self.total_ratio:.2f} of what was measured"
        )


def calibrate(path: Path) -> Calibration:
    """Raises TraceFileError."""
    steps = list(read_steps(path))
    if len(steps) < LEAST_STEPS:
        raise TraceFileError(f"{path} has {len(steps)} steps with rows, {LEAST_STEPS} are needed")
    amounts = np.array([step.amounts for step in steps], np.float64)
    times_us = np.array([step.device_us for step in steps], np.float64)
    prices_us = fit(amounts, times_us)
    predicted_us = amounts @ prices_us
    errors = np.abs(predicted_us / times_us - 1)
    return Calibration(
        cost=DeviceCost(**dict(zip(PARTS, prices_us.tolist(), strict=True)), host_us=host_us(steps)),
        steps=len(steps),
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        total_ratio=float(predicted_us.sum() / times_us.sum()),
    )


def read_steps(path: Path) -> Iterator[TracedStep]:
    """The rows of a step stand behind it in the file. Raises TraceFileError."""
    step: dict[str, Any] | None = None
    rows: list[dict[str, Any]] = []
    last_end_us = -1.0
    for event in [*_events(path), {"cat": "step"}]:
        kind = event.get("cat")
        if kind in {"prefill", "decode"}:
            rows.append(event)
        elif kind == "step":
            if step is not None and rows:
                yield _traced(step, rows, after_pause=step["ts"] > last_end_us)
            if step is not None:
                last_end_us = step["ts"] + step["dur"]
            step, rows = event, []


def fit(amounts: NDArray[np.float64], times_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Prices of at least 0, one for each column of `amounts`; `times_us` are above 0."""
    weights = 1 / times_us
    prices_us = non_negative(amounts * weights[:, None], times_us * weights)
    for _ in range(REWEIGHTINGS):
        errors = np.abs(amounts @ prices_us / times_us - 1)
        weights = 1 / (times_us * np.sqrt(np.maximum(errors, 1e-3)))
        prices_us = non_negative(amounts * weights[:, None], times_us * weights)
    return prices_us


def non_negative(columns: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares without a negative coefficient, by trying every set of columns: there are few."""
    best, least = np.zeros(columns.shape[1]), float(targets @ targets)
    for chosen in _subsets(columns.shape[1]):
        part = columns[:, chosen]
        scale = np.maximum(np.linalg.norm(part, axis=0), 1e-30)
        solution = np.linalg.lstsq(part / scale, targets, rcond=None)[0] / scale
        residual = targets - part @ solution
        if (solution >= 0).all() and float(residual @ residual) < least:
            least, best = float(residual @ residual), np.zeros(columns.shape[1])
            best[chosen] = solution
    return best


def host_us(steps: Sequence[TracedStep]) -> int:
    """What a step that was sent to an idle device took besides its computing: messages both ways. 0 where no step was."""
    beside = [step.span_us - step.device_us for step in steps if step.after_pause]
    return max(0, round(statistics.median(beside))) if beside else 0


def _subsets(count: int) -> Iterable[list[int]]:
    sizes = range(1, count + 1)
    return (list(chosen) for size in sizes for chosen in itertools.combinations(range(count), size))


def _events(path: Path) -> list[dict[str, Any]]:
    """A trace of a server that still runs has no end yet."""
    try:
        text = path.read_text(encoding="utf-8").rstrip()
        events: list[dict[str, Any]] = json.loads(text if text.endswith("]") else text + "]")
    except (OSError, ValueError) as error:
        raise TraceFileError(f"{path} is no trace: {error}") from error
    return events


def _traced(step: dict[str, Any], rows: Sequence[dict[str, Any]], *, after_pause: bool) -> TracedStep:
    arguments = [row["args"] for row in rows]
    return TracedStep(
        device_us=max(1, step["args"]["device_us"]),
        span_us=step["dur"],
        after_pause=after_pause,
        prefill_tokens=step["args"]["prefill_tokens"],
        decode_rows=step["args"]["decode_rows"],
        context_rows=sum(row["start"] for row in arguments),
        context_pairs=sum(row["start"] * row["tokens"] for row in arguments),
    )
