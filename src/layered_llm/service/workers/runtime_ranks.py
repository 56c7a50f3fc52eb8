"""What the scheduler's process knows of the runtime: which ranks are ready or have failed, and how long a step may take.

Must not know: links, clocks (time comes in as an argument), what a step computes, what becomes of a runtime that hangs.

Each rank is sent each step, and holds the same slots. One answers; the others only report that they are ready or have failed.
The runtime works on one step at a time: a step's time begins when it is sent, or when the step before it is back.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, assert_never

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import (
    ANSWERING_RANK,
    RuntimeReady,
    RuntimeToScheduler,
    RuntimeWarmingUp,
    StepCompleted,
    StepFailed,
)
from layered_llm.domain.messages.supervision import Role, StateReport

WARM_UP_SILENCE_S: Final = 600.0
"""Above what any part of a runtime's opening takes: a matrix that is read from a slow disk, a kernel that is compiled."""
STEP_DEADLINE_S: Final = 60.0
STEP_DEADLINE_PER_TOKEN_S: Final = 2.0
"""Far above what any device takes: a step that is not back by then never comes back."""


class RuntimeFailed(Exception):  # noqa: N818 - states what happened
    """A rank said that it could not execute a step, or the ranks are not of one runtime."""


@attrs.define(eq=False)
class RuntimeRanks:
    """What the scheduler knows of them."""

    _names: Sequence[str]
    """On the link, in the order of the ranks."""
    _ready: dict[str, RuntimeReady] = attrs.field(init=False, factory=dict)
    _warming_up_s: dict[str, float] = attrs.field(init=False, factory=dict)
    """When each that warms up last said so."""
    _open_slots: int = attrs.field(init=False, default=0)

    @property
    def are_ready(self) -> bool:
        return len(self._ready) == len(self._names)

    @property
    def silent_s(self) -> float:
        """When a rank that warms up has been silent for too long; one that has said nothing is watched by its process alone."""
        return min(self._warming_up_s.values(), default=math.inf) + WARM_UP_SILENCE_S

    @property
    def limits(self) -> RuntimeLimits:
        """Of all of them, which are ready. Raises RuntimeFailed."""
        limits, *others = {ready.limits for ready in self._ready.values()}
        if others:
            raise RuntimeFailed(f"the ranks of the runtime have different limits: {limits} and {others[0]}")
        return limits

    def hear(self, rank: str, word: RuntimeToScheduler, now_s: float) -> StepCompleted | None:
        """A step's result, if it is one. Raises RuntimeFailed, and InvariantViolated for a word at the wrong time."""
        is_ready = rank in self._ready
        match word:
            case RuntimeWarmingUp() if not is_ready:
                self._warming_up_s[rank] = now_s
            case RuntimeReady() if not is_ready:
                self._ready[rank] = word
                self._warming_up_s.pop(rank, None)
            case StepFailed() if is_ready:
                raise RuntimeFailed(f"{rank}, step {word.step}: {word.message}")
            case StepCompleted() if is_ready and rank == self._names[ANSWERING_RANK]:
                self._open_slots = word.open_slots
                return word
            case RuntimeWarmingUp() | RuntimeReady() | StepFailed() | StepCompleted():
                when = "after it was ready" if is_ready else "before it was ready"
                raise InvariantViolated(f"{rank} says {word!r} {when}")
            case _:
                assert_never(word)
        return None

    def reports(self, query: int) -> tuple[StateReport, ...]:
        """One of each rank, which has no event loop to be asked, as of the last step that was answered."""
        return tuple(self._report(query, rank, self._ready[name].pid) for rank, name in enumerate(self._names))

    def _report(self, query: int, rank: int, pid: int) -> StateReport:
        slots = self._open_slots
        return StateReport(query=query, role=Role.RUNTIME, index=rank, pid=pid, open_requests=slots, maps=(("slots", slots),))


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
