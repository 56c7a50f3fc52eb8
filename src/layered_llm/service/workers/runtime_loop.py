"""The loop around a device: receives steps, submits them, answers when they are done. Blocks; has no event loop.

Must not know: what a step is for, processes, sockets.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from layered_llm.domain.ids import StepId
from layered_llm.domain.messages.scheduler_runtime import (
    RuntimeReady,
    RuntimeToScheduler,
    RuntimeWarmingUp,
    SchedulerToRuntime,
    StepFailed,
)
from layered_llm.runtime.device.device import MOST_SUBMITTED, Device, DeviceError
from layered_llm.transport.ports import BlockingMessageLink

WARM_UP_INTERVAL_US: Final = 5_000_000

RuntimeLink = BlockingMessageLink[RuntimeToScheduler, SchedulerToRuntime]


def warm_up_words(link: RuntimeLink, now_us: Callable[[], int]) -> Callable[[], None]:
    """To be called between the parts of a device's opening: says every WARM_UP_INTERVAL_US that it goes on."""
    due_us = now_us() + WARM_UP_INTERVAL_US

    def say_if_due() -> None:
        nonlocal due_us
        if (now := now_us()) >= due_us:
            due_us = now + WARM_UP_INTERVAL_US
            link.send(RuntimeWarmingUp())

    return say_if_due


def serve_device(device: Device, link: RuntimeLink, *, pid: int, answers: bool = True) -> None:
    """Executes steps for ever, and answers them, unless another rank does.

    LinkClosed passes through when the link is closed, DeviceError after a StepFailed.
    """
    link.send(RuntimeReady(limits=device.limits, pid=pid))
    submitted = deque[StepId]()
    while True:
        try:
            if _receives_next(device, link, len(submitted)):
                step = link.receive()
                submitted.append(step.step)
                device.submit(step)
            else:
                result = device.collect()
                if answers:
                    link.send(result)
                submitted.popleft()
        except DeviceError as error:
            link.send(StepFailed(step=submitted[0], message=str(error)))
            raise


def _receives_next(device: Device, link: RuntimeLink, submitted: int) -> bool:
    """Waits for a step to come or the oldest one to be done; a step that came goes first, so that the device is never idle."""
    if not submitted or submitted == MOST_SUBMITTED:
        return not submitted
    return device.done is not None and link.comes_before(device.done)
