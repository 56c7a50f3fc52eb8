"""What the runtime's loop and the tests see of a device: its limits, and steps that are submitted and collected.

Must not know: which device it is, torch, links, who asked.
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import Final, Protocol

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, StepCompleted

MOST_SUBMITTED: Final = 2
"""Steps that a device holds: one that it executes, and one that follows without a gap."""


def go_on() -> None:
    """For whoever opens a device and is not going to give the opening up."""


class DeviceError(Exception):
    """The device cannot be opened, or can go on no longer; the message is one line that an operator can act on."""


class Device(Protocol):
    """Executes steps in the order in which they are submitted; it belongs to one thread.

    `submit` and `collect` raise DeviceError when the device failed, and InvariantViolated for a step that contradicts the
    state of the slots, for one more than MOST_SUBMITTED, and where nothing was submitted.
    """

    @property
    def limits(self) -> RuntimeLimits:
        """What fits the device's memory and its model; fixed for the device's life."""

    @property
    def done(self) -> int | None:
        """A file descriptor that can be read from while the oldest submitted step is done; nobody but the device reads from it.

        None where `collect` executes the step: then there is nothing else to wait for.
        """

    def submit(self, step: ExecuteStep) -> None:
        """Hands a step over; returns before it is done."""

    def collect(self) -> StepCompleted:
        """The result of the oldest submitted step; blocks until it is done. Its `device_us` is the device's own time for it."""


class HostDevice(ABC):
    """A device that executes a step when it is collected, on the thread that collects."""

    def __init__(self) -> None:
        self._submitted = deque[ExecuteStep]()

    @property
    def done(self) -> None:
        return None

    def submit(self, step: ExecuteStep) -> None:
        if len(self._submitted) == MOST_SUBMITTED:
            raise InvariantViolated(f"step {step.step} is submitted while {MOST_SUBMITTED} wait to be collected")
        self._submitted.append(step)

    def collect(self) -> StepCompleted:
        if not self._submitted:
            raise InvariantViolated("a step is collected and none was submitted")
        return self._execute(self._submitted.popleft())

    @abstractmethod
    def _execute(self, step: ExecuteStep) -> StepCompleted: ...


def one_line(error: BaseException) -> str:
    """The first line of what `error` says: torch appends its stack."""
    return next(iter(str(error).splitlines()), type(error).__name__)
