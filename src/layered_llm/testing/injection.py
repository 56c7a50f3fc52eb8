"""One fault, exactly between two steps of a task or of the tasks that it started.

Must not know: engines, requests.

A step of a task is what it does between two points where it waits. A fault is injected while the task waits: it is there before
anything that the task waits for can be. So counting the steps of a run, and repeating the run once for each, covers every point
at which the outside world can interrupt the target.
"""

import enum
from collections.abc import Callable, Mapping
from typing import assert_never

import attrs
import outcome
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task


@enum.unique
class Fault(enum.Enum):
    """What happens to the task, or around it."""

    CANCEL = "cancel"
    """Its cancel scope is cancelled."""
    DEADLINE = "deadline"
    """Its cancel scope's deadline passes."""
    ERROR = "error"
    """What it waits for raises."""
    DISCONNECT = "disconnect"
    """Its client is gone: for a target that has one, and waits for this."""
    SHUTDOWN = "shutdown"
    """The block that keeps the engine is left."""
    DEATH = "death"
    """The API process that it runs in is killed: for a target with a process of its own."""
    STALL = "stall"
    """The API process that it runs in takes no messages for a while: for a target with a process of its own."""


class Injected(Exception):  # noqa: N818 - states what happened
    """The error of Fault.ERROR."""


@attrs.frozen(eq=False)
class Watched:
    """What is counted, and what a fault can do to it."""

    task: Task
    """Its steps count, and those of every task under it."""
    scope: trio.CancelScope
    """Around all that the task does."""
    outside: Mapping[Fault, Callable[[], object]]
    """How the faults come about that happen around the task."""


@enum.unique
class StepsOf(enum.Enum):
    """Whose steps are counted."""

    TARGET = "target"
    """Those of the target's task and of every task under it: all points at which the target can be interrupted."""
    ENGINE = "engine"
    """Those of every task while the target runs: all states of the engine that an interruption of the target can meet."""


@attrs.define(eq=False)
class StepInjector(trio.abc.Instrument):
    """Counts the steps of a target and of everything, and injects one fault behind a given one."""

    fault: Fault | None = None
    behind_step: int = 0
    """1 is the first step; a fault behind a step that never comes is not injected."""
    steps_of: StepsOf = StepsOf.TARGET
    counts: dict[StepsOf, int] = attrs.field(factory=lambda: dict.fromkeys(StepsOf, 0))
    was_injected: bool = False
    _watched: Watched | None = None

    def watch(self, watched: Watched) -> None:
        """From its next step on, the target is counted."""
        self._watched = watched

    def unwatch(self) -> None:
        """The target has ended."""
        self._watched = None

    def after_task_step(self, task: Task) -> None:
        """Called by trio."""
        if self._watched is None:
            return
        is_targets = _is_under(task, self._watched.task)
        self.counts[StepsOf.ENGINE] += 1
        self.counts[StepsOf.TARGET] += is_targets
        if not is_targets and self.steps_of is StepsOf.TARGET:
            return
        if self.counts[self.steps_of] == self.behind_step and self.fault is not None:
            self.was_injected = True
            _inject(self.fault, task if is_targets else self._watched.task, self._watched)


def _is_under(task: Task | None, root: Task) -> bool:
    while task is not None:
        if task is root:
            return True
        task = task.parent_nursery.parent_task if task.parent_nursery is not None else None
    return False


def _inject(fault: Fault, task: Task, watched: Watched) -> None:
    match fault:
        case Fault.CANCEL:
            watched.scope.cancel(reason="injected")
        case Fault.DEADLINE:
            watched.scope.deadline = trio.current_time()
        case Fault.ERROR:
            _raise_in(task)
        case Fault.DISCONNECT | Fault.SHUTDOWN | Fault.DEATH | Fault.STALL:
            watched.outside[fault]()
        case _:
            assert_never(fault)


def _raise_in(task: Task) -> None:
    """Lets the task's present wait end with Injected, by the way that trio ends it with Cancelled.

    A wait that cannot be interrupted at present is left alone, as a cancellation would leave it.
    """
    abort = task._abort_func  # noqa: SLF001 - there is no public way to look at it
    if abort is None:
        return
    raising: RaiseCancelT = outcome.Error(Injected()).unwrap
    if abort(raising) is Abort.SUCCEEDED:
        task._abort_func = None  # noqa: SLF001 - as said above
        trio.lowlevel.reschedule(task, outcome.Error(Injected()))
