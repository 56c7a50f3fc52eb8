"""One fault, exactly between two steps of a task.

Must not know: engines, requests.

A step of a task is what it does between two points where it waits. A fault is injected while the task waits: it is there before
anything that the task waits for can be. So counting the steps of a run, and repeating the run once for each, covers every point
at which the outside world can interrupt the task.
"""

import enum
from typing import Final

import attrs
import outcome
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task

SPENT_S: Final = 0.0


@enum.unique
class Fault(enum.Enum):
    """What happens to the task."""

    CANCEL = "cancel"
    """Its cancel scope is cancelled."""
    DEADLINE = "deadline"
    """Its cancel scope's deadline passes."""
    ERROR = "error"
    """What it waits for raises."""


class Injected(Exception):  # noqa: N818 - states what happened
    """The error of Fault.ERROR."""


@attrs.define(eq=False)
class StepInjector(trio.abc.Instrument):
    """Counts the steps of one task, and injects one fault behind a given one."""

    _fault: Fault | None = None
    _behind_step: int = 0
    """1 is the first step; a fault behind a step that never comes is not injected."""
    steps: int = 0
    was_injected: bool = False
    _task: Task | None = None
    _scope: trio.CancelScope | None = None

    def watch(self, task: Task, scope: trio.CancelScope) -> None:
        """From its next step on, the task is counted; `scope` is around all that it does."""
        self._task, self._scope = task, scope

    def unwatch(self) -> None:
        """The task has left `scope`."""
        self._task = self._scope = None

    def after_task_step(self, task: Task) -> None:
        """Called by trio."""
        if task is not self._task or self._scope is None:
            return
        self.steps += 1
        if self.steps == self._behind_step and self._fault is not None:
            self.was_injected = True
            _inject(self._fault, task, self._scope)


def _inject(fault: Fault, task: Task, scope: trio.CancelScope) -> None:
    match fault:
        case Fault.CANCEL:
            scope.cancel(reason="injected")
        case Fault.DEADLINE:
            scope.deadline = trio.current_time()
        case Fault.ERROR:
            _raise_in(task)


def _raise_in(task: Task) -> None:
    """Lets the task's present wait end with Injected, by the way that trio ends it with Cancelled.

    A wait that cannot be interrupted at present is left alone, as a cancellation would leave it.
    """
    abort = task._abort_func  # noqa: SLF001 - there is no public way to look at it
    if abort is None:
        return
    raising: RaiseCancelT = outcome.Error(Injected()).unwrap
    if abort(raising) is Abort.SUCCEEDED:
        task._abort_func = None  # noqa: SLF001
        trio.lowlevel.reschedule(task, outcome.Error(Injected()))
