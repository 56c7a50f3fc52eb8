"""What each tenant was given, by which they take turns: whoever was given least comes next.

Must not know: queues, pages, what a tenant is to the operator.

A tenant's counter grows by what its choices cost, and one that comes back from having nothing to ask is lifted to the least of
those that wait, so that nobody saves turns up: the virtual token counter (Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024). Only tokens of a prompt that are computed are charged, not those found in the cache (Cao et al.,
"Locality-aware Fair Scheduling in LLM Serving", arXiv:2501.14312), and what is computed again after a preemption is nobody's
debt. So two tenants that both always wait are never further apart than about twice the largest of: what one start costs, and
what the choices that run may still be given.

Invariant: with no open request there is no tenant.
"""

from collections.abc import Iterator
from typing import Final

import attrs

PROMPT_TOKEN_COST: Final = 1
OUTPUT_TOKEN_COST: Final = 2
"""The paper's weights, and about what such tokens are sold for: an output token takes a step, a prompt's share one."""


@attrs.define(eq=False)
class Tenant:
    """One tenant; an object, so that charging each token of a step looks nothing up."""

    name: str
    open_requests: int = 0
    served: int = 0
    """Cost of what it was given, to be compared with other tenants' only."""


class Tenants:
    """Tenants with open requests, and those without that are still ahead of others: to leave and come back settles no debt."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._open_requests = 0

    @property
    def count(self) -> int:
        """Tenants of open requests, and those without one that are still ahead of others."""
        return len(self._tenants)

    def streams(self, name: str) -> int:
        """Open requests of one tenant."""
        return self._tenants[name].open_requests if name in self._tenants else 0

    def open_request(self, name: str, *, least_served: int) -> Tenant:
        """The tenant, with one request more.

        `least_served` is what one that comes back is lifted to. It never falls, so whoever is idle and not above it is as good
        as new, and forgotten when another name comes.
        """
        if name not in self._tenants:
            for idle in [one for one in self._tenants.values() if not one.open_requests and one.served <= least_served]:
                del self._tenants[idle.name]
            self._tenants[name] = Tenant(name)
        tenant = self._tenants[name]
        tenant.open_requests += 1
        self._open_requests += 1
        return tenant

    def close_request(self, tenant: Tenant) -> None:
        tenant.open_requests -= 1
        self._open_requests -= 1
        if not self._open_requests:
            self._tenants.clear()

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())
