"""trio in one order: the same seed runs the same tasks in the same order, at the same virtual times.

Must not know: what is run.

trio shuffles each batch of tasks that are ready, on purpose. Its own test of determinism turns that off by two private names;
this module is the only one that knows them (trio 0.31 to 0.35).
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar, cast

import trio
from trio.testing import MockClock

ResultT = TypeVar("ResultT")


def run_deterministic(
    main: Callable[[], Awaitable[ResultT]], *, seed: int, instruments: Sequence[trio.abc.Instrument] = ()
) -> ResultT:
    """Runs `main` to its end. Time jumps to the next deadline as soon as every task waits."""
    with _in_order(seed):
        return trio.run(main, clock=MockClock(autojump_threshold=0), instruments=instruments)


@contextlib.contextmanager
def _in_order(seed: int) -> Iterator[None]:
    run = cast("Any", trio._core._run)  # noqa: SLF001 - see the module's docstring
    before = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r  # noqa: SLF001 - as said above
    run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = True, Random(seed)  # noqa: SLF001, S311 - as said above; a run that can be repeated
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING, run._r = before  # noqa: SLF001 - as said above
