"""What the runtime's shell and the tests see of a device: its limits, and one step at a time.

Must not know: which device it is, torch, links, who asked.
"""

from typing import Protocol

from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, StepCompleted


def go_on() -> None:
    """For whoever opens a device and is not going to give the opening up."""


class DeviceError(Exception):
    """The device cannot be opened, or can go on no longer; the message is one line that an operator can act on."""


class Device(Protocol):
    """Executes steps in the order in which they come; each is complete when `execute` returns."""

    @property
    def limits(self) -> RuntimeLimits:
        """What fits the device's memory and its model; fixed for the device's life."""

    def execute(self, step: ExecuteStep) -> StepCompleted:
        """Raises DeviceError when the device failed, and InvariantViolated for a step that contradicts the slots' state."""


def one_line(error: BaseException) -> str:
    """The first line of what `error` says: torch appends its stack."""
    return next(iter(str(error).splitlines()), type(error).__name__)
