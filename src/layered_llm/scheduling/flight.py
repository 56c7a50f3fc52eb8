"""The steps that were sent and are not yet answered, and the aborted requests that they still name.

Must not know: how a step was planned, what becomes of its tokens, clocks (time comes in as an argument).

Invariants: steps are numbered one by one and answered in that order. What is known of open slots is what was said with the
step answered last.
"""

from collections import deque

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import RequestId, StepId
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from layered_llm.scheduling.pages import NO_STEP
from layered_llm.scheduling.plan import PlannedStep


class StepsInFlight:
    """Numbers steps, and pairs each result with what was planned."""

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps
        self.steps: deque[PlannedStep] = deque()
        """The oldest first."""
        self.next_step = StepId(1)
        self.open_slots = (0, 0)
        """Slots that hold state after the step answered last: how many should, and how many do as the runtime says."""

    def sent(self, planned: PlannedStep) -> None:
        self.next_step = StepId(planned.step + 1)
        self.steps.append(planned)

    def answered(self, result: StepCompleted) -> PlannedStep:
        """The oldest step. Raises InvariantViolated where the result is another one's or has too few or too many tokens."""
        if not self.steps or self.steps[0].step != result.step:
            expected = self.steps[0].step if self.steps else None
            raise InvariantViolated(f"result of step {result.step}, the oldest step in flight is {expected}")
        planned = self.steps[0]
        planned.take_yields(result)
        self.steps.popleft()
        self.open_slots = planned.open_slots, result.open_slots
        return planned


@attrs.frozen(kw_only=True)
class AbortRelease:
    """An abort whose request holds no page any more, in quarantine neither."""

    request: RequestId
    aborted_us: int
    """When the abort was handled."""
    steps: int
    """Steps in flight that had to be acknowledged first."""


@attrs.define(eq=False)
class AbortReleases:
    """The aborted requests that a step in flight still names: each waits for the last one, and no longer."""

    _waiting: dict[StepId, list[AbortRelease]] = attrs.field(init=False, factory=dict)
    _acknowledged: StepId = attrs.field(init=False, default=NO_STEP)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def aborted(self, request: RequestId, last_step: StepId, now_us: int) -> tuple[AbortRelease, ...]:
        """`last_step` is the last step that names the request, NO_STEP for none; the release, where nothing is in flight."""
        steps = max(0, last_step - self._acknowledged)
        release = AbortRelease(request=request, aborted_us=now_us, steps=steps)
        if not steps:
            return (release,)
        self._waiting.setdefault(last_step, []).append(release)
        return ()

    def acknowledge(self, step: StepId) -> tuple[AbortRelease, ...]:
        """What waited for this step. Steps are acknowledged one by one, in order."""
        self._acknowledged = step
        return tuple(self._waiting.pop(step, ()))
