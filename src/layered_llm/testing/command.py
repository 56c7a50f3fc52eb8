"""The command that runs every scenario with every fault at every step, in as many processes as there are cores.

Must not know: what a scenario does, what is checked.
"""

import argparse
import contextlib
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Final

import attrs
from tqdm import tqdm

from layered_llm.testing.cancel_everywhere import Coverage, Failure, Points, cancel_everywhere
from layered_llm.testing.injection import Fault, StepsOf
from layered_llm.testing.playing import REST_S, Target
from layered_llm.testing.scenarios import all_scenarios

EXIT_FAILURES: Final = 1
EXIT_USAGE: Final = 2
PROGRAM: Final = "python -m layered_llm.testing"
DEFAULT_SEEDS: Final = 20
ENGINE_EVERY: Final = 32
_NOTHING: Final = Coverage(points=0, runs=0, failures=())
_EPILOG: Final = f"""\
what it does
  A whole engine (client, supervisor, text workers, scheduler, links) runs in one thread and in virtual time; only the device
  computes nothing. A scenario's target is run once to count its steps (what it does between two waits), then once for each
  step and fault, with the fault exactly there. More faults come between the steps of the engine's own tasks while the target
  waits: they meet its request in every phase, queued, between two chunks of its prompt, in a step in flight.
  The seed decides the order of tasks and how long messages are on their way.

faults
  cancel, deadline, error   what can happen to a task that uses the engine as a library
  disconnect                the HTTP client goes away
  shutdown                  the engine is closed under the request
  death, stall              the API process is killed, or takes no messages for a while

what must hold after each run
  Each request has one end, seen once. One that was left early has sent one abort before its scope is closed, and one that had
  ended has sent none. No step names an aborted request. Within {REST_S:g} virtual seconds every table is empty and every page
  is back. Requests beside the target have the output that they have alone, and the next request the answer that it always has.

examples
  {PROGRAM} cancel-everywhere                               everything, {DEFAULT_SEEDS} seeds
  {PROGRAM} cancel-everywhere --seeds 1 --every 4           a quick look
  {PROGRAM} cancel-everywhere --scenario queued --seeds 200 one scenario, thoroughly
  {PROGRAM} cancel-everywhere --scenario queued --seed 7 --fault error --step 3   one run again, with its traceback
"""


@attrs.frozen(kw_only=True)
class Part:
    """A scenario with one seed: what a process does at a time."""

    scenario: str
    seed: int
    faults: tuple[Fault, ...]
    points: Points

    def run(self) -> Coverage:
        (target,) = (one for one in all_scenarios() if one.name == self.scenario)
        with _silence():
            return cancel_everywhere(target, seeds=(self.seed,), faults=self.faults, points=self.points)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What a fault makes the engine log is no news here."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    arguments = _parser().parse_args(words)
    targets = [target for target in all_scenarios() if target.name in (arguments.scenario or [target.name])]
    if arguments.list:
        sys.stdout.writelines(f"{target.name:<28} {', '.join(f.value for f in target.faults)}\n" for target in targets)
        return 0
    parts = _parts(arguments, targets)
    if not parts:
        sys.stderr.write("none of these scenarios has such a fault; --list shows which have\n")
        return EXIT_USAGE
    covered = _run(parts, arguments.jobs)
    sys.stdout.write(table(targets, covered))
    failures = [failure for coverage in covered.values() for failure in coverage.failures]
    for failure in failures:
        sys.stdout.write(f"\n{failure}\n  again: {repetition(failure)}\n")
        if _only(arguments) is not None:
            sys.stdout.write(failure.details)
    return EXIT_FAILURES if failures else 0


def table(targets: Sequence[Target], covered: dict[str, Coverage]) -> str:
    """One aligned line for each scenario, and the sum."""
    rows = [(target.name, covered[target.name]) for target in targets if target.name in covered]
    rows.append(("all", sum(covered.values(), _NOTHING)))
    title = "scenario"
    width = max(len(title), *(len(name) for name, _ in rows))
    lines = [f"{title:<{width}}  {'points':>7}  {'runs':>7}  {'failures':>8}\n"]
    for name, coverage in rows:
        lines.append(f"{name:<{width}}  {coverage.points:>7,}  {coverage.runs:>7,}  {len(coverage.failures):>8}\n")
    return "".join(lines)


def repetition(failure: Failure) -> str:
    """The command line that runs a failed run again."""
    words = f"{PROGRAM} cancel-everywhere --scenario {failure.scenario} --seed {failure.seed}"
    if failure.fault is None:
        return f"{words} --step 0"
    flag = "--step" if failure.steps_of is StepsOf.TARGET else "--engine-step"
    return f"{words} --fault {failure.fault.value} {flag} {failure.step}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Tools for whoever tests what embeds the engine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "cancel-everywhere",
        help="inject a fault at every step of every scenario and check the cancellation contract",
        description="Injects a fault at every step of every scenario and checks the cancellation contract after each.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [target.name for target in all_scenarios()]
    faults = [fault.value for fault in Fault]
    one_or_many = command.add_mutually_exclusive_group()
    one_or_many.add_argument(
        "--seeds", type=_positive, default=DEFAULT_SEEDS, metavar="N", help=f"seeds 0 … N-1 (default: {DEFAULT_SEEDS})"
    )
    one_or_many.add_argument("--seed", type=int, metavar="SEED", help="only this seed")
    command.add_argument("--scenario", action="append", choices=names, metavar="NAME", help="only this one; may be repeated")
    command.add_argument("--fault", action="append", choices=faults, help="only this kind; may be repeated")
    command.add_argument(
        "--every", type=_positive, default=1, metavar="K", help="every K-th step of the target (default: each)"
    )
    command.add_argument(
        "--engine-every",
        type=_natural,
        default=ENGINE_EVERY,
        metavar="K",
        help=f"every K-th step of any task while the target runs, 0 for none (default: {ENGINE_EVERY})",
    )
    one_step = command.add_mutually_exclusive_group()
    one_step.add_argument("--step", type=int, metavar="STEP", help="only behind this step of the target, 0 for no fault")
    one_step.add_argument("--engine-step", type=int, metavar="STEP", help="only behind this step of any task")
    command.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    command.add_argument("--list", action="store_true", help="name the scenarios and the faults of each, and run none")
    return parser


def _natural(word: str) -> int:
    number = int(word)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{word} is negative")
    return number


def _positive(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word} is not at least 1")
    return number


def _parts(arguments: argparse.Namespace, targets: Sequence[Target]) -> list[Part]:
    seeds = range(arguments.seeds) if arguments.seed is None else (arguments.seed,)
    points = Points(every=arguments.every, engine_every=arguments.engine_every, only=_only(arguments))
    asked = tuple(Fault(word) for word in arguments.fault or ())
    return [
        Part(scenario=target.name, seed=seed, faults=faults, points=points)
        for target in targets
        if (faults := tuple(fault for fault in target.faults if not asked or fault in asked))
        for seed in seeds
    ]


def _only(arguments: argparse.Namespace) -> tuple[StepsOf, int] | None:
    if arguments.step is not None:
        return StepsOf.TARGET, arguments.step
    return None if arguments.engine_step is None else (StepsOf.ENGINE, arguments.engine_step)


def _run(parts: Sequence[Part], jobs: int) -> dict[str, Coverage]:
    covered = {part.scenario: _NOTHING for part in parts}
    for part, coverage in tqdm(_results(parts, jobs), total=len(parts), unit="part", disable=None, leave=False):
        covered[part.scenario] += coverage
    return covered


def _results(parts: Sequence[Part], jobs: int) -> Iterator[tuple[Part, Coverage]]:
    if min(jobs, len(parts)) <= 1:
        yield from ((part, part.run()) for part in parts)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures: dict[Future[Coverage], Part] = {pool.submit(part.run): part for part in parts}
        yield from ((futures[future], future.result()) for future in as_completed(futures))
