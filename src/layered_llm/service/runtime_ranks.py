"""The ranks of one runtime: who of them is ready, what the one that answers says, and that any of them has failed.

Must not know: links, clocks (time comes in as an argument), what a step computes.

Each rank is sent each step, and holds the same slots. One answers; of the others nothing is heard but that they are ready or
have failed.
"""

import math
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
                when = "after it was ready" if is_ready else "as its first word"
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
