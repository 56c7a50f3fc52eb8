"""The runtime's loop, over devices that execute a step when it is collected, and over one that does so meanwhile."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

import attrs
import pytest

from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import (
    ExecuteStep,
    RuntimeReady,
    RuntimeToScheduler,
    RuntimeWarmingUp,
    StepCompleted,
    StepFailed,
)
from layered_llm.runtime.device.device import Device, DeviceError
from layered_llm.runtime.scripted.scripted_device import ScriptedDevice, ScriptedPace
from layered_llm.runtime.scripted.scripts import EchoScript
from layered_llm.service.workers.runtime_loop import WARM_UP_INTERVAL_US, serve_device, warm_up_words
from layered_llm.transport.ports import LinkClosed
from support.runtime_driver import make_step, open_slot

LIMITS = RuntimeLimits(pages=8, page_size_tokens=4, slots=2, context_tokens=16, vocabulary_size=100)
STEPS = (
    make_step(1, opened=[open_slot(0, [7, 8, 9])], pages=[(0, 0, [3])], rows=[(0, 0, 3, True)]),
    make_step(2, rows=[(0, 3, 1, True)]),
    make_step(3, pages=[(0, 1, [5])], rows=[(0, 4, 1, True)]),
)


def scripted() -> ScriptedDevice:
    pace = ScriptedPace(step_us=0, token_us=0)
    return ScriptedDevice(limits=LIMITS, script=EchoScript(), pace=pace, wait=lambda _: None, now_us=lambda: 0)


@attrs.define
class ConcurrentDevice:
    """As a GPU does: takes a step at once, and executes it when the test lets it."""

    _host: ScriptedDevice = attrs.field(factory=scripted)
    _results: deque[StepCompleted] = attrs.field(factory=deque)
    _ends: tuple[int, int] = attrs.field(factory=os.pipe)
    events: list[str] = attrs.field(factory=list)
    failure: DeviceError | None = None

    @property
    def limits(self) -> RuntimeLimits:
        return self._host.limits

    @property
    def done(self) -> int:
        return self._ends[0]

    def submit(self, step: ExecuteStep) -> None:
        self._host.submit(step)
        self.events.append(f"submit {step.step}")

    def finish(self) -> None:
        """The oldest step is done."""
        if self.failure is not None:
            raise self.failure
        self._results.append(self._host.collect())
        os.write(self._ends[1], b"d")

    def collect(self) -> StepCompleted:
        if not self._results:
            self.finish()
        os.read(self._ends[0], 1)
        self.events.append(f"collect {self._results[0].step}")
        return self._results.popleft()

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


Event = ExecuteStep | Callable[[], None]


@attrs.define
class ScriptedLink:
    """Whoever waits finds the next event of the script: a step has come, or the device is done. None is left: it is closed."""

    _script: deque[Event]
    sent: list[RuntimeToScheduler] = attrs.field(factory=list)

    def receive(self) -> ExecuteStep:
        if not self._script:
            raise LinkClosed
        event = self._script.popleft()
        if isinstance(event, ExecuteStep):
            return event
        event()
        return self.receive()

    def comes_before(self, descriptor: int) -> bool:
        if not self._script:
            raise LinkClosed
        if isinstance(self._script[0], ExecuteStep):
            return True
        event = self._script.popleft()
        assert not isinstance(event, ExecuteStep)
        event()
        return False

    def send(self, message: RuntimeToScheduler) -> None:
        self.sent.append(message)


def serve(device: Device, link: ScriptedLink) -> list[RuntimeToScheduler]:
    with pytest.raises(LinkClosed):
        serve_device(device, link, pid=7)
    return link.sent


@pytest.fixture
def concurrent() -> Iterator[ConcurrentDevice]:
    device = ConcurrentDevice()
    yield device
    device.close()


def expected() -> list[RuntimeToScheduler]:
    device, results = scripted(), []
    for step in STEPS:
        device.submit(step)
        results.append(device.collect())
    return [RuntimeReady(limits=LIMITS, pid=7), *results]


def test_a_long_opening_says_now_and_then_that_it_goes_on() -> None:
    link = ScriptedLink(deque())
    clock = count(0, WARM_UP_INTERVAL_US // 2)
    say_if_due = warm_up_words(link, lambda: next(clock))
    sent = []
    for _ in range(5):
        say_if_due()
        sent.append(len(link.sent))
    assert ([0, 1, 1, 2, 2], RuntimeWarmingUp()) == (sent, link.sent[-1])


def test_a_device_that_executes_when_asked_answers_each_step_before_the_next() -> None:
    assert expected() == serve(scripted(), ScriptedLink(deque(STEPS)))


def test_a_device_is_given_the_next_step_while_it_executes_one(concurrent: ConcurrentDevice) -> None:
    assert expected() == serve(concurrent, ScriptedLink(deque([*STEPS, concurrent.finish])))
    assert ["submit 1", "submit 2", "collect 1", "submit 3", "collect 2", "collect 3"] == concurrent.events


def test_a_step_that_is_done_is_answered_before_another_comes(concurrent: ConcurrentDevice) -> None:
    first, second, third = STEPS
    done = concurrent.finish
    assert expected() == serve(concurrent, ScriptedLink(deque([first, done, second, done, third, done])))
    assert ["submit 1", "collect 1", "submit 2", "collect 2", "submit 3", "collect 3"] == concurrent.events


def test_a_rank_that_does_not_answer_executes_each_step_and_says_that_it_is_ready(concurrent: ConcurrentDevice) -> None:
    link = ScriptedLink(deque([*STEPS, concurrent.finish]))
    with pytest.raises(LinkClosed):
        serve_device(concurrent, link, pid=7, answers=False)

    assert [RuntimeReady(limits=LIMITS, pid=7)] == link.sent
    assert ["submit 1", "submit 2", "collect 1", "submit 3", "collect 2", "collect 3"] == concurrent.events


def test_a_device_that_fails_names_the_oldest_step_it_holds(concurrent: ConcurrentDevice) -> None:
    link = ScriptedLink(deque(STEPS[:2]))
    concurrent.failure = DeviceError("out of memory")
    with pytest.raises(DeviceError, match="out of memory"):
        serve_device(concurrent, link, pid=7)
    assert StepFailed(step=STEPS[0].step, message="out of memory") == link.sent[-1]
