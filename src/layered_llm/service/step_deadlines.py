"""How long the runtime may take for the steps that it was sent.

Must not know: clocks (time comes in as an argument), what a step computes, what becomes of a runtime that hangs.

The runtime works on one step at a time: a step's time begins when it is sent, or when the step before it is back.
"""

import math
from collections import deque
from typing import Final

import attrs

STEP_DEADLINE_S: Final = 60.0
STEP_DEADLINE_PER_TOKEN_S: Final = 2.0
"""Far above what any device takes: a step that is not back by then never comes back."""


@attrs.define(eq=False)
class StepDeadlines:
    """The steps in flight, oldest first."""

    _allowances_s: deque[float] = attrs.field(init=False, factory=deque)
    """How long each may take."""
    _oldest_began_s: float = attrs.field(init=False, default=0.0)

    def sent(self, tokens: int, now_s: float) -> None:
        """A step that computes so many tokens."""
        if not self._allowances_s:
            self._oldest_began_s = now_s
        self._allowances_s.append(STEP_DEADLINE_S + STEP_DEADLINE_PER_TOKEN_S * tokens)

    def answered(self, now_s: float) -> None:
        """The oldest one is back."""
        self._allowances_s.popleft()
        self._oldest_began_s = now_s

    def is_overdue(self, now_s: float) -> bool:
        return now_s >= self._overdue_s()

    def next_look_s(self, now_s: float) -> float:
        """When to ask again: before that no step can be overdue, nor one that is sent meanwhile."""
        return min(self._overdue_s(), now_s + STEP_DEADLINE_S)

    def _overdue_s(self) -> float:
        return self._oldest_began_s + self._allowances_s[0] if self._allowances_s else math.inf
