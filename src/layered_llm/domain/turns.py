"""Whose work comes next where tenants share something that does one piece of work at a time: whoever was given least.

Must not know: what the work is, threads, clocks.

Each tenant has a counter of what its work cost, and is chosen by it; within a tenant the order is that of arrival. One that
comes back from asking nothing is lifted to the tenant that was chosen last, so that nobody saves turns up (start-time fair
queueing: Goyal, Vin and Cheng, SIGCOMM 1996). So two tenants that both always wait are never further apart than the largest
cost of a turn, and one that asks for little waits for what is under way and for no more than one turn of each of the others.
Work that is divided into portions enters again with each.

Invariant: with no turn waiting or under way there is no tenant.
"""

from operator import attrgetter
from typing import Generic, TypeVar

import attrs

ItemT = TypeVar("ItemT")


@attrs.define(eq=False)
class Turn(Generic[ItemT]):
    """One piece of work of one tenant, from when it enters until it leaves."""

    tenant: str
    cost: int
    """To be compared with other costs of the same kind only; at least 1 is charged."""
    item: ItemT
    is_given: bool = attrs.field(init=False, default=False)
    """Whether it was chosen."""


@attrs.define(eq=False)
class _Tenant(Generic[ItemT]):
    served: int
    waiting: dict[Turn[ItemT], None] = attrs.field(factory=dict)
    """In order of arrival."""
    under_way: int = 0


@attrs.define(eq=False)
class Turns(Generic[ItemT]):
    """The turns that wait and those under way. How many there may be under way is the caller's affair."""

    _tenants: dict[str, _Tenant[ItemT]] = attrs.field(init=False, factory=dict)
    """Those with turns, and those without that were given more than others: to leave and come back settles no debt."""
    _asking: dict[str, _Tenant[ItemT]] = attrs.field(init=False, factory=dict)
    """Those with turns that wait."""
    _chosen: int = attrs.field(init=False, default=0)
    """What the tenant that was chosen last had been given; it never falls while anybody has a turn."""
    _open: int = attrs.field(init=False, default=0)

    @property
    def tenant_count(self) -> int:
        """Tenants that it knows."""
        return len(self._tenants)

    @property
    def waiting_count(self) -> int:
        """Turns that wait."""
        return sum(len(tenant.waiting) for tenant in self._asking.values())

    def enter(self, tenant: str, cost: int, item: ItemT) -> Turn[ItemT]:
        """A turn that waits until `next` returns it; whatever happens, `leave` ends it."""
        turn = Turn(tenant, cost, item)
        if tenant not in self._tenants:
            if self._tenants:
                self._forget_idle()
            self._tenants[tenant] = _Tenant(self._chosen)
        entry = self._tenants[tenant]
        if not entry.waiting:
            entry.served = max(entry.served, self._chosen)
            self._asking[tenant] = entry
        entry.waiting[turn] = None
        self._open += 1
        return turn

    def next(self) -> Turn[ItemT] | None:
        """The turn that comes now, under way from here on, or None where none waits."""
        if not self._asking:
            return None
        entry = min(self._asking.values(), key=attrgetter("served"))
        turn = next(iter(entry.waiting))
        self._stop_waiting(turn, entry)
        turn.is_given = True
        entry.under_way += 1
        self._chosen = max(self._chosen, entry.served)
        entry.served += max(1, turn.cost)
        return turn

    def leave(self, turn: Turn[ItemT]) -> None:
        """It is done, or it is not wanted any more; what never came is not charged. Call it once for each turn."""
        entry = self._tenants[turn.tenant]
        if turn.is_given:
            entry.under_way -= 1
        else:
            self._stop_waiting(turn, entry)
        self._open -= 1
        if not self._open:
            self._tenants.clear()
            self._chosen = 0

    def _stop_waiting(self, turn: Turn[ItemT], entry: _Tenant[ItemT]) -> None:
        del entry.waiting[turn]
        if not entry.waiting:
            del self._asking[turn.tenant]

    def _forget_idle(self) -> None:
        for name, entry in list(self._tenants.items()):
            if not entry.waiting and not entry.under_way and entry.served <= self._chosen:
                del self._tenants[name]
