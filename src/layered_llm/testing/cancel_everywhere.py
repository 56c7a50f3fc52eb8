"""Runs a scenario again and again, each time with one fault at another of its steps, and checks the contract after each.

Must not know: what a scenario does, how a run is made.

One run has a seed: it decides the order of tasks and how long messages are on their way. A first run without a fault counts the
steps; then each of the target's steps gets each kind of fault, and, while the target waits, some of the engine's own steps in
between. After the fault the engine must come to rest by itself, with nothing left of the request, and must answer a probe with
the text that it always gives.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from layered_llm.testing.injection import Fault, StepInjector, StepsOf
from layered_llm.testing.observed_engine import Asked, Tokens
from layered_llm.testing.playing import Expected, Play, Target

LIBRARY_FAULTS: Final = (Fault.CANCEL, Fault.DEADLINE, Fault.ERROR)
CLIENT_FAULTS: Final = (Fault.CANCEL, Fault.DISCONNECT)


@attrs.frozen(kw_only=True)
class Failure:
    """One run that broke the contract; `seed`, `fault`, `step` and `steps_of` repeat it."""

    scenario: str
    seed: int
    fault: Fault | None
    step: int
    steps_of: StepsOf
    broken: tuple[str, ...]
    details: str = ""
    """The traceback of what ended the run, if anything did."""

    def __str__(self) -> str:
        what = (
            f"{self.fault.value} behind step {self.step} of the {self.steps_of.value}" if self.fault is not None else "no fault"
        )
        return f"{self.scenario}, seed {self.seed}, {what}: {'; '.join(self.broken)}"


@attrs.frozen(kw_only=True)
class Coverage:
    """What was tried."""

    points: int
    """Runs in which a fault was injected, over all seeds and faults."""
    runs: int
    failures: tuple[Failure, ...]

    def __add__(self, other: "Coverage") -> "Coverage":
        return Coverage(points=self.points + other.points, runs=self.runs + other.runs, failures=self.failures + other.failures)


@attrs.frozen(kw_only=True)
class Points:
    """Where faults are injected. What is left out for one seed is not for the next: each starts at another step."""

    every: int = 1
    """Every so many steps of the target, each of the target's faults."""
    engine_every: int = 0
    """Every so many steps of any task while the target runs, the faults that differ for the engine; 0 for none."""
    only: tuple[StepsOf, int] | None = None
    """Only this step, whatever the others say; step 0 is the run without a fault."""

    def of(self, steps_of: StepsOf, count: int, seed: int) -> Sequence[int]:
        """The steps behind which there is a fault, of `count` ones."""
        if self.only is not None:
            only_of, step = self.only
            return [step] if step and only_of is steps_of else []
        every = self.every if steps_of is StepsOf.TARGET else self.engine_every
        return range(1 + seed % min(every, count), count + 1, every) if every and count else []


EVERYWHERE: Final = Points()


def cancel_everywhere(
    target: Target, *, seeds: Iterable[int], faults: Iterable[Fault] | None = None, points: Points = EVERYWHERE
) -> Coverage:
    """Runs the target with a fault at each of `points`, for each seed; `faults` are the target's own where none are given."""
    kinds = target.faults if faults is None else tuple(faults)
    total = Coverage(points=0, runs=0, failures=())
    for seed in seeds:
        total += _with_seed(target, seed, kinds, points)
    return total


def _with_seed(target: Target, seed: int, faults: tuple[Fault, ...], points: Points) -> Coverage:
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
    plays = [
        Play(target=target, seed=seed, injector=StepInjector(fault, step, steps_of), expected=expected)
        for steps_of in StepsOf
        for step in points.of(steps_of, clean.injector.counts[steps_of], seed)
        for fault in (faults if steps_of is StepsOf.TARGET or points.only else _differing(faults))
    ]
    for play in plays:
        play.play()
        failures.extend(_failures(target, play))
    injected = sum(play.injector.was_injected for play in plays)
    return Coverage(points=injected, runs=len(alone) + 1 + len(plays), failures=tuple(failures))


def _differing(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """A passed deadline and an error are a cancellation to the engine."""
    return tuple(fault for fault in faults if fault not in (Fault.DEADLINE, Fault.ERROR)) or faults


def _failures(target: Target, *plays: Play) -> Iterator[Failure]:
    for play in plays:
        if play.broken:
            yield Failure(
                scenario=target.name,
                seed=play.seed,
                fault=play.injector.fault,
                step=play.injector.behind_step,
                steps_of=play.injector.steps_of,
                broken=tuple(play.broken),
                details=play.details,
            )
