"""Choices that have not started or were preempted, and which of them starts next.

Must not know: steps, pages, why a choice cannot start yet.

Preempted choices come before all others, since they were taken in already. Of the others, tenants take turns, and the order
that the operator chose decides within a tenant. The choice that came first is passed over a bounded number of times. One that
does not fit holds up all behind it: letting smaller ones pass would starve a big one for as long as small ones come. A text
worker without credit holds up nobody: its choices are passed over and keep their place.

Invariants: a choice stands in the queue at most once; a request counts as waiting as long as one of its choices does.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice

import attrs

from layered_llm.domain.ids import RequestId
from layered_llm.scheduling.orders import Order, arrival
from layered_llm.scheduling.sequences import Sequence, TextWorker

Lane = OrderedDict[Sequence, None]
"""Choices of one tenant, worker and priority as they came. Ordered by hash, as they leave from the middle when aborted."""


@attrs.define(eq=False)
class _Tenant:
    """Lanes keep workers apart, so that passing over one without credit costs one look, and priorities likewise."""

    lanes: dict[tuple[TextWorker, int], Lane] = attrs.field(factory=dict)
    overtakes: int = 0
    """How often in a row the choice that came first was passed over."""


class WaitingQueue:
    """Taking the next one takes time in proportion to lanes and tenants, not to waiting choices."""

    def __init__(self, order: Order, *, max_overtakes: int) -> None:
        self._order = order
        self._max_overtakes = max_overtakes
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        """Whose turn it is first."""
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
        return len(self._tenants)

    def choices_by_request(self) -> dict[RequestId, int]:
        return dict(self._choices_by_request)

    def sequences(self) -> tuple[Sequence, ...]:
        lanes = (lane for tenant in self._tenants.values() for lane in tenant.lanes.values())
        return (*self._preempted, *(sequence for lane in lanes for sequence in lane))

    def push(self, sequence: Sequence) -> None:
        """A choice that came now."""
        tenant = self._tenants.setdefault(sequence.admit.tenant, _Tenant())
        tenant.lanes.setdefault(_lane_key(sequence), OrderedDict())[sequence] = None
        self._count(sequence, 1)

    def push_preempted(self, sequence: Sequence) -> None:
        self._preempted[sequence] = None
        self._count(sequence, 1)

    def first(self, can_start: Callable[[Sequence], bool]) -> Sequence | None:
        """Who starts next. None where nobody can, and while a preempted choice with credit cannot yet."""
        preempted = [sequence for sequence in self._preempted if sequence.worker.has_credit]
        if preempted:
            oldest = min(preempted, key=arrival)
            return oldest if can_start(oldest) else None
        for tenant in self._tenants.values():
            candidates = list(self._candidates(tenant, can_start))
            if candidates and tenant.overtakes >= self._max_overtakes:
                return min(candidates, key=arrival)
            if candidates:
                return self._order.choose(candidates)
        return None

    def take(self, sequence: Sequence) -> None:
        """`sequence` starts: the next turn is another tenant's."""
        name = sequence.admit.tenant
        if sequence not in self._preempted:
            tenant = self._tenants[name]
            is_first = all(next(iter(lane)).arrival >= sequence.arrival for lane in tenant.lanes.values())
            tenant.overtakes = 0 if is_first else tenant.overtakes + 1
            self._tenants.move_to_end(name)
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._count(sequence, -1)
        if sequence in self._preempted:
            del self._preempted[sequence]
            return
        tenant = self._tenants[sequence.admit.tenant]
        lane = tenant.lanes[_lane_key(sequence)]
        del lane[sequence]
        if not lane:
            del tenant.lanes[_lane_key(sequence)]
        if not tenant.lanes:
            del self._tenants[sequence.admit.tenant]

    def _candidates(self, tenant: _Tenant, can_start: Callable[[Sequence], bool]) -> Iterator[Sequence]:
        for (worker, _), lane in tenant.lanes.items():
            if worker.has_credit:
                yield from islice(filter(can_start, lane), self._order.window)

    def _count(self, sequence: Sequence, change: int) -> None:
        count = self._choices_by_request.get(sequence.request, 0) + change
        if count:
            self._choices_by_request[sequence.request] = count
        else:
            del self._choices_by_request[sequence.request]


def _lane_key(sequence: Sequence) -> tuple[TextWorker, int]:
    return sequence.worker, sequence.admit.priority
