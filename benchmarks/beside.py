"""The same measurements of this tree and of another checkout of the project, in turns within one run.

Must not know: what is measured.

Two runs, one after the other, differ by a tenth on most machines, whatever the code. Here both checkouts are measured in every
round, one right after the other and each first in every second round, and only ratios within a round count.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from benchmarks.json_file import write_json
from benchmarks.machine import this_machine
from benchmarks.worker_process import ROOT
from tqdm import tqdm

LEAST_ROUNDS: Final = 7
DEFAULT_BOUND: Final = 0.98
NORMAL_MAD: Final = 1.4826
"""Standard deviations in a median absolute deviation, of a normal distribution."""
MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median in those of a mean, of a normal distribution."""
EXPLANATION: Final = """\
  this, other     medians of all rounds
  ratio           how many times as fast this tree is as the other: the median of the ratios within each round, and its spread
                  (the standard error of that median, from the median absolute deviation of the ratios)
  holds           whether the ratio less its spread is at least the bound
"""


@attrs.frozen(kw_only=True)
class Checkout:
    """A tree of the project, and how its modules are run."""

    directory: Path

    @property
    def name(self) -> str:
        """The commit, with + where files differ from it; the directory where there is no git."""
        command = ["git", "-C", str(self.directory), "describe", "--always", "--dirty=+", "--abbrev=7", "--exclude=*"]
        described = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        return described.stdout.strip() or self.directory.name

    @property
    def environment(self) -> dict[str, str]:
        """This process's, in which this checkout's packages come before all others."""
        path = [str(self.directory / "src"), str(self.directory), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path).rstrip(os.pathsep)}

    def python(self, *arguments: str) -> list[str]:
        """The command of this interpreter."""
        return [sys.executable, *arguments]


THIS: Final = Checkout(directory=ROOT)


@attrs.frozen(kw_only=True)
class Pair:
    """One thing that is measured of both."""

    name: str
    unit: str
    more_is_better: bool
    this: Callable[[], float]
    other: Callable[[], float]


@attrs.define(kw_only=True)
class Samples:
    """Of one pair: an item for each round."""

    pair: Pair
    this: list[float] = attrs.Factory(list)
    other: list[float] = attrs.Factory(list)

    @property
    def ratios(self) -> list[float]:
        """Above 1 where this tree is faster."""
        pairs = zip(self.this, self.other, strict=True)
        return [mine / theirs if self.pair.more_is_better else theirs / mine for mine, theirs in pairs]


@attrs.frozen(kw_only=True)
class Ratio:
    """What the rounds say together."""

    median: float
    spread: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Ratio":
        """Of at least one."""
        median = statistics.median(ratios)
        deviation = statistics.median(abs(ratio - median) for ratio in ratios)
        return cls(median=median, spread=MEDIAN_ERROR * NORMAL_MAD * deviation / len(ratios) ** 0.5)

    def holds(self, bound: float) -> bool:
        return self.median - self.spread >= bound


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--beside",
        type=_checkout,
        metavar="CHECKOUT",
        help="measure this tree and another checkout of the project in turns, and print how many times as fast this one is; "
        "make one with: git worktree add CHECKOUT COMMIT",
    )
    parser.add_argument(
        "--bound",
        type=float,
        default=DEFAULT_BOUND,
        metavar="R",
        help="with --beside: end with 1 where a ratio less its spread is below this (default: %(default)s)",
    )


def rounds_of(arguments: argparse.Namespace) -> int:
    """Those that were asked for, and no fewer than the spread of a median needs."""
    return max(LEAST_ROUNDS, arguments.rounds or 0)


def compare(
    other: Checkout,
    pairs: Sequence[Pair],
    *,
    rounds: int,
    bound: float,
    json_file: Path | None,
    before_round: Callable[[int], None] = lambda _: None,
) -> bool:
    """Measures all pairs in rounds and prints the table; whether all hold. The file is written after each round."""
    samples = [Samples(pair=pair) for pair in pairs]
    machine = this_machine()
    with tqdm(total=rounds * len(pairs) * 2, unit="step", file=sys.stderr, smoothing=0, dynamic_ncols=True) as bar:
        for number in range(rounds):
            before_round(number)
            for one in samples:
                bar.set_description(f"round {number + 1}/{rounds}, {one.pair.name}")
                measure_round(one, this_first=number % 2 == 0, done=bar.update)
            if json_file is not None:
                write_json({"machine": attrs.asdict(machine), **report(other, samples)}, json_file)
    print(f"{THIS.name} beside {other.name}; {rounds} rounds; {machine}\n\n{table(samples, bound)}")
    return all(Ratio.of(one.ratios).holds(bound) for one in samples)


def measure_round(samples: Samples, *, this_first: bool, done: Callable[[], object]) -> None:
    """One value for each side."""
    sides = [(samples.this, samples.pair.this), (samples.other, samples.pair.other)]
    for values, measure in sides if this_first else reversed(sides):
        values.append(measure())
        done()


def table(samples: Sequence[Samples], bound: float) -> str:
    width = max(len(f"{one.pair.name}, {one.pair.unit}") for one in samples)
    rows = [f"{'':<{width}}{'this':>10}{'other':>10}{'ratio':>16}   holds {bound}"]
    for one in samples:
        ratio = Ratio.of(one.ratios)
        figures = f"{statistics.median(one.this):>10.4g}{statistics.median(one.other):>10.4g}"
        spread = f"{ratio.median:.3f} ± {ratio.spread:.3f}"
        label = f"{one.pair.name}, {one.pair.unit}"
        rows.append(f"{label:<{width}}{figures}{spread:>16}   {'yes' if ratio.holds(bound) else 'NO'}")
    return "\n".join(rows)


def report(other: Checkout, samples: Sequence[Samples]) -> Mapping[str, Any]:
    return {
        "this": THIS.name,
        "other": other.name,
        "measured": [
            {
                "name": one.pair.name,
                "unit": one.pair.unit,
                "this": one.this,
                "other": one.other,
                "ratio": attrs.asdict(Ratio.of(one.ratios)),
            }
            for one in samples
        ],
    }


def _checkout(text: str) -> Checkout:
    directory = Path(text).absolute()
    if not (directory / "src" / "layered_llm").is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no checkout of this project: it has no src/layered_llm")
    return Checkout(directory=directory)
