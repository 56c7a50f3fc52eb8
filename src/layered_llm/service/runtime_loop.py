"""The loop around a device: receives a step, executes it, answers. Blocks; has no event loop.

Must not know: what a step is for, processes, sockets.
"""

from layered_llm.domain.messages.scheduler_runtime import (
    RuntimeReady,
    RuntimeToScheduler,
    SchedulerToRuntime,
    StepFailed,
)
from layered_llm.runtime.device import Device, DeviceError
from layered_llm.transport.ports import BlockingMessageLink

RuntimeLink = BlockingMessageLink[RuntimeToScheduler, SchedulerToRuntime]


def serve_device(device: Device, link: RuntimeLink, *, pid: int) -> None:
    """Executes steps for ever. LinkClosed passes through when the link is closed, DeviceError behind a StepFailed."""
    link.send(RuntimeReady(limits=device.limits, pid=pid))
    while True:
        step = link.receive()
        try:
            completed = device.execute(step)
        except DeviceError as error:
            link.send(StepFailed(step=step.step, message=str(error)))
            raise
        link.send(completed)
