"""The steps that were sent and are not yet answered.

Must not know: how a step was planned, what becomes of its tokens.

Invariants: steps are numbered one by one and answered in that order. What is known of open slots is what was said with the
step answered last.
"""

from collections import deque
from collections.abc import Sequence

from layered_llm.domain.columns import rows
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import StepId
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from layered_llm.scheduling.plan import PlannedStep


class StepsInFlight:
    """Numbers steps, and pairs each result with what was planned."""

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps
        self._steps: deque[PlannedStep] = deque()
        self._next_step = 1
        self._open_slots_expected = 0
        self._open_slots_reported = 0

    @property
    def steps(self) -> Sequence[PlannedStep]:
        """The oldest first."""
        return self._steps

    @property
    def is_full(self) -> bool:
        return len(self._steps) >= self._max_steps

    @property
    def max_steps(self) -> int:
        return self._max_steps

    @property
    def next_step(self) -> StepId:
        return StepId(self._next_step)

    @property
    def open_slots(self) -> tuple[int, int]:
        """Slots that hold state after the step answered last: how many should, and how many do as the runtime says."""
        return self._open_slots_expected, self._open_slots_reported

    def sent(self, planned: PlannedStep) -> None:
        self._next_step += 1
        self._steps.append(planned)

    def answered(self, result: StepCompleted) -> PlannedStep:
        """The oldest step. Raises InvariantViolated where the result is another one's or has too few or too many tokens."""
        if not self._steps or self._steps[0].step != result.step:
            expected = self._steps[0].step if self._steps else None
            raise InvariantViolated(f"result of step {result.step}, the oldest step in flight is {expected}")
        planned = self._steps[0]
        if rows("i", result.token_ids) != len(planned.sampled):
            raise InvariantViolated(
                f"step {result.step} samples {len(planned.sampled)} tokens, {rows('i', result.token_ids)} came back"
            )
        self._steps.popleft()
        self._open_slots_expected, self._open_slots_reported = planned.open_slots, result.open_slots
        return planned
