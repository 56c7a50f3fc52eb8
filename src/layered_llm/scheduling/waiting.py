"""Choices that have not started or were preempted, and which of them starts next.

Must not know: steps, pages, why a choice cannot start yet.

Preempted choices come before all others, since they were taken in already. Of the others, it is the turn of the tenant that was
given least (`open_requests`), and the order that the operator chose decides within a tenant. The choice that came first is
passed over a bounded number of times. One that does not fit holds up all after it: letting smaller ones pass would starve a big
one for as long as small ones come. A text worker without credit holds up nobody: its choices are passed over and keep their
place.

Invariants: a choice is in the queue at most once; a request counts as waiting as long as one of its choices does.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Final, assert_never

import attrs

from layered_llm.domain.ids import RequestId
from layered_llm.scheduling.policy import AdmissionOrder
from layered_llm.scheduling.sequences import PROMPT_TOKEN_COST, Sequence, Tenant, TextWorker

Lane = OrderedDict[Sequence, None]
"""Choices of one tenant, worker and priority as they came. Ordered by hash, as they leave from the middle when aborted."""
_PREFIX_WINDOW: Final = 32
"""Looking into the cache for each choice of a long queue would cost more than a prefix that comes a little later."""


@attrs.frozen
class Order:
    """The lowest rank starts first."""

    window: int
    """How many choices that came first in a lane (one worker, one priority) are looked at; nothing after them ranks lower."""
    rank: Callable[[Sequence], tuple[int, int]]


def order_for(order: AdmissionOrder, *, cached_tokens: Callable[[Sequence], int]) -> Order:
    """`cached_tokens` says how much of a waiting choice is in the cache now."""
    match order:
        case AdmissionOrder.FIRST_COME:
            return Order(1, lambda sequence: (0, sequence.arrival))
        case AdmissionOrder.PRIORITY:
            return Order(1, lambda sequence: (sequence.admit.placement.priority, sequence.arrival))
        case AdmissionOrder.LONGEST_PREFIX:
            return Order(_PREFIX_WINDOW, lambda sequence: (-cached_tokens(sequence), sequence.arrival))
        case _:
            assert_never(order)


@attrs.define(eq=False)
class _Line:
    """What waits of one tenant. Lanes keep workers and priorities apart: to pass over a worker without credit costs a look."""

    lanes: dict[tuple[TextWorker, int], Lane] = attrs.field(factory=dict)
    overtakes: int = 0
    """How often in a row the choice that came first was passed over."""


class WaitingQueue:
    """Taking the next one takes time in proportion to lanes and tenants, not to waiting choices."""

    def __init__(self, order: Order, *, max_overtakes: int) -> None:
        self._order = order
        self._max_overtakes = max_overtakes
        self._lines: OrderedDict[Tenant, _Line] = OrderedDict()
        """Of those that were given the same, the first one's turn was longest ago."""
        self._last_left: Tenant | None = None
        """The tenant of which nothing waits since last."""
        self._preempted: dict[Sequence, None] = {}
        self._choices_by_request: dict[RequestId, int] = {}

    @property
    def request_count(self) -> int:
        return len(self._choices_by_request)

    @property
    def choice_count(self) -> int:
        return sum(self._choices_by_request.values())

    @property
    def tenant_count(self) -> int:
        return len(self._lines)

    @property
    def least_served(self) -> int:
        """What the waiting tenant was given that was given least; while none waits, the one that waited last. Never falls."""
        last = 0 if self._last_left is None else self._last_left.served
        return min(map(attrgetter("served"), self._lines), default=last)

    def choices_by_request(self) -> dict[RequestId, int]:
        return dict(self._choices_by_request)

    def sequences(self) -> tuple[Sequence, ...]:
        lanes = (lane for line in self._lines.values() for lane in line.lanes.values())
        return (*self._preempted, *(sequence for lane in lanes for sequence in lane))

    def push(self, sequence: Sequence) -> None:
        """A choice that came now."""
        tenant = sequence.tenant
        if tenant not in self._lines:
            tenant.served = max(tenant.served, self.least_served)  # what it was not given meanwhile it did not want
            self._lines[tenant] = _Line()
        self._lines[tenant].lanes.setdefault(_lane_key(sequence), OrderedDict())[sequence] = None
        self._count(sequence, 1)

    def push_preempted(self, sequence: Sequence) -> None:
        self._preempted[sequence] = None
        self._count(sequence, 1)

    def first(self, can_start: Callable[[Sequence], bool]) -> Sequence | None:
        """Who starts next. None where nobody can, and while a preempted choice with credit cannot yet."""
        if self._preempted and (ready := [one for one in self._preempted if one.worker.has_credit]):
            oldest = min(ready, key=attrgetter("arrival"))
            return oldest if can_start(oldest) else None
        for tenant in sorted(self._lines, key=attrgetter("served")):
            line = self._lines[tenant]
            candidates = list(self._candidates(line, can_start))
            if candidates and line.overtakes >= self._max_overtakes:
                return min(candidates, key=attrgetter("arrival"))
            if candidates:
                return min(candidates, key=self._order.rank)
        return None

    def take(self, sequence: Sequence) -> None:
        """`sequence` has started: its tenant is charged for what is computed of its prompt, once."""
        if sequence not in self._preempted:
            line = self._lines[sequence.tenant]
            is_first = all(next(iter(lane)).arrival >= sequence.arrival for lane in line.lanes.values())
            line.overtakes = 0 if is_first else line.overtakes + 1
            sequence.tenant.served += PROMPT_TOKEN_COST * (sequence.prefill_tokens - sequence.computed_tokens)
            self._lines.move_to_end(sequence.tenant)
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._count(sequence, -1)
        if sequence in self._preempted:
            del self._preempted[sequence]
            return
        line = self._lines[sequence.tenant]
        lane = line.lanes[_lane_key(sequence)]
        del lane[sequence]
        if not lane:
            del line.lanes[_lane_key(sequence)]
        if not line.lanes:
            del self._lines[sequence.tenant]
            self._last_left = sequence.tenant

    def _candidates(self, line: _Line, can_start: Callable[[Sequence], bool]) -> Iterator[Sequence]:
        for (worker, _), lane in line.lanes.items():
            if worker.has_credit:
                yield from islice(filter(can_start, lane), self._order.window)

    def _count(self, sequence: Sequence, change: int) -> None:
        count = self._choices_by_request.get(sequence.request, 0) + change
        if count:
            self._choices_by_request[sequence.request] = count
        else:
            del self._choices_by_request[sequence.request]


def _lane_key(sequence: Sequence) -> tuple[TextWorker, int]:
    return sequence.worker, sequence.admit.placement.priority
