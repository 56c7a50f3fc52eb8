"""Ids of a fixed set, lent one by one and taken back late.

Must not know: what an id stands for, who holds it.

Invariants: an id is free, lent, or in quarantine, and only in one of them. An id that a step in flight names is never free:
it comes back when that step is acknowledged, so nothing that the device still reads or writes is given away.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import StepId

IdT = TypeVar("IdT", bound=int)

NO_STEP: Final = StepId(0)
"""Before the first step."""


@attrs.frozen(kw_only=True)
class PoolCensus(Generic[IdT]):
    """Where the ids that nobody holds are at one moment."""

    free: tuple[IdT, ...]
    quarantined: tuple[tuple[StepId, tuple[IdT, ...]], ...]
    """For each step in flight the ids that wait for it."""


@attrs.define(eq=False)
class QuarantinePool(Generic[IdT]):
    """Lends ids, the last one returned first: its memory is the likeliest to be in a cache."""

    free: list[IdT]
    _quarantine: dict[StepId, list[IdT]] = attrs.field(init=False, factory=dict)
    _acknowledged: StepId = attrs.field(init=False, default=NO_STEP)

    @property
    def quarantined_count(self) -> int:
        return sum(map(len, self._quarantine.values()))

    def take(self, count: int) -> list[IdT]:
        """Raises InvariantViolated when fewer are free: whoever asks has looked before."""
        rest = len(self.free) - count
        if rest < 0:
            raise InvariantViolated(f"{count} ids asked for, {len(self.free)} are free")
        taken = self.free[rest:]
        del self.free[rest:]
        return taken

    def give_back(self, ids: Iterable[IdT], last_step: StepId) -> None:
        """`last_step` is the last step that names the ids, 0 for none."""
        if last_step <= self._acknowledged:
            self.free.extend(ids)
        else:
            self._quarantine.setdefault(last_step, []).extend(ids)

    def acknowledge(self, step: StepId) -> None:
        """Steps are acknowledged one by one, in order."""
        self._acknowledged = step
        self.free.extend(self._quarantine.pop(step, ()))

    def census(self) -> PoolCensus[IdT]:
        quarantined = tuple((step, tuple(ids)) for step, ids in self._quarantine.items())
        return PoolCensus(free=tuple(self.free), quarantined=quarantined)


def count_everywhere(census: PoolCensus[IdT], held: Sequence[IdT]) -> dict[IdT, int]:
    """How often each id occurs among the free, the quarantined and the held ones."""
    counts: dict[IdT, int] = {}
    for ids in (census.free, held, *(ids for _, ids in census.quarantined)):
        for one in ids:
            counts[one] = counts.get(one, 0) + 1
    return counts
