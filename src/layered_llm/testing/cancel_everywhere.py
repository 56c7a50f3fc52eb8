"""Runs a scenario again and again, each time with one fault at another of its steps, and checks the contract after each.

Must not know: what a scenario does, how a run is made.

One run has a seed: it decides the order of tasks and how long messages are on their way. A first run without a fault counts the
steps of the target; then each of them gets each kind of fault. After the fault the engine must come to rest by itself, with
nothing left of the request, and must answer a probe with the text that it always gives.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from layered_llm.testing.injection import Fault, StepInjector
from layered_llm.testing.playing import Asked, Expected, Play, Target, Tokens

LIBRARY_FAULTS: Final = (Fault.CANCEL, Fault.DEADLINE, Fault.ERROR)
CLIENT_FAULTS: Final = (Fault.CANCEL, Fault.DISCONNECT)


@attrs.frozen(kw_only=True)
class Failure:
    """One run that broke the contract; `seed`, `fault` and `step` repeat it."""

    scenario: str
    seed: int
    fault: Fault | None
    step: int
    broken: tuple[str, ...]
    details: str = ""
    """The traceback of what ended the run, if anything did."""

    def __str__(self) -> str:
        what = f"{self.fault.value} behind step {self.step}" if self.fault is not None else "no fault"
        return f"{self.scenario}, seed {self.seed}, {what}: {'; '.join(self.broken)}"


@attrs.frozen(kw_only=True)
class Coverage:
    """What was tried."""

    points: int
    """Steps of the target that got a fault, over all seeds and faults."""
    runs: int
    failures: tuple[Failure, ...]

    def __add__(self, other: "Coverage") -> "Coverage":
        return Coverage(points=self.points + other.points, runs=self.runs + other.runs, failures=self.failures + other.failures)


def cancel_everywhere(
    target: Target, *, seeds: Iterable[int], faults: Iterable[Fault] | None = None, every: int = 1, step: int | None = None
) -> Coverage:
    """Every `every`-th step of the target, or only `step`, gets each of the faults, for each seed.

    `faults` are the target's own where none are given.
    """
    kinds = target.faults if faults is None else tuple(faults)
    total = Coverage(points=0, runs=0, failures=())
    for seed in seeds:
        total += _with_seed(target, seed, kinds, every, step)
    return total


def _with_seed(target: Target, seed: int, faults: tuple[Fault, ...], every: int, only_step: int | None) -> Coverage:
    expected_beside: dict[Asked, Tokens] = {}
    alone = [Play(target=target, seed=seed, only_beside=index) for index in range(len(target.beside))]
    for play in alone:
        play.play()
        expected_beside |= play.outputs_beside
    clean = Play(target=target, seed=seed, expected=Expected(beside=expected_beside))
    clean.play()
    failures = list(_failures(target, *alone, clean))
    if failures:
        return Coverage(points=0, runs=len(alone) + 1, failures=tuple(failures))
    expected = Expected(target=clean.outputs, beside=expected_beside, probe=clean.probe)
    steps = range(1 + seed % every, clean.injector.steps + 1, every) if only_step is None else (only_step,)
    plays = [
        Play(target=target, seed=seed, injector=StepInjector(fault, step), expected=expected)
        for step in steps
        for fault in faults
    ]
    for play in plays:
        play.play()
        failures.extend(_failures(target, play))
    points = sum(play.injector.was_injected for play in plays)
    return Coverage(points=points, runs=len(alone) + 1 + len(plays), failures=tuple(failures))


def _failures(target: Target, *plays: Play) -> Iterator[Failure]:
    for play in plays:
        if play.broken:
            yield Failure(
                scenario=target.name,
                seed=play.seed,
                fault=play.injector.fault,
                step=play.injector.behind_step,
                broken=tuple(play.broken),
                details=play.details,
            )
