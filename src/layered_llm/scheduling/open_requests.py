"""Which requests are taken, which are open and whose they are, and which have waited too long to start.

Must not know: steps, page ids, what a choice is doing, clocks (time comes in as an argument).

Tenants take turns by what they were given: whoever was given least comes next. A tenant's counter grows by what its choices
cost, and one that comes back from having nothing to ask is lifted to the least of those that wait, so that nobody saves turns
up: the virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Only tokens of a prompt
that are computed are charged, not those found in the cache (Cao et al., "Locality-aware Fair Scheduling in LLM Serving",
arXiv:2501.14312), and what is computed again after a preemption is nobody's debt. So two tenants that both always wait are
never further apart than about twice the largest of: what one start costs, and what the choices that run may still be given.

Invariants: nothing is kept for a request that ended; with no open request there is no tenant. Choices are numbered in the order
in which they came.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import attrs

from layered_llm.domain.columns import rows, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.text_scheduler import Admit, Refused
from layered_llm.domain.verdicts import RefuseReason
from layered_llm.scheduling.policy import SchedulingPolicy
from layered_llm.scheduling.sequences import Request, Sequence, Tenant, TextWorker


@attrs.frozen(kw_only=True)
class Load:
    """What is there already when a request comes."""

    waiting_requests: int
    streams: int
    """Open requests."""
    tenant_streams: int
    """Open requests of the tenant that asks."""


def judge(admit: Admit, *, limits: RuntimeLimits, policy: SchedulingPolicy, load: Load) -> Refused | None:
    """Why the request is not taken, or None when it is; what can never run comes before what cannot run now.

    The choices of a request may run one after another, so one of them decides whether it fits. Units of `limit` and `actual`:
    computed tokens for CONTEXT_LENGTH_EXCEEDED, pages for NEVER_FITS, waiting requests for QUEUE_FULL, open requests for
    SERVER_FULL, those of the tenant for TOO_MANY_STREAMS.
    """
    tokens = rows("i", admit.prompt_ids) + admit.max_tokens - 1  # the last one is never computed
    pages = -(-tokens // limits.page_size_tokens)
    if tokens > limits.context_tokens:
        return _refuse(admit, RefuseReason.CONTEXT_LENGTH_EXCEEDED, limits.context_tokens, tokens)
    if pages > limits.pages:
        return _refuse(admit, RefuseReason.NEVER_FITS, limits.pages, pages)
    if policy.max_streams_per_tenant is not None and load.tenant_streams >= policy.max_streams_per_tenant:
        return _refuse(admit, RefuseReason.TOO_MANY_STREAMS, policy.max_streams_per_tenant, load.tenant_streams)
    if policy.max_streams is not None and load.streams >= policy.max_streams:
        return _refuse(admit, RefuseReason.SERVER_FULL, policy.max_streams, load.streams)
    if load.waiting_requests >= policy.max_queued_requests:
        return _refuse(admit, RefuseReason.QUEUE_FULL, policy.max_queued_requests, load.waiting_requests)
    return None


def _refuse(admit: Admit, reason: RefuseReason, limit: int, actual: int) -> Refused:
    return Refused(request=admit.request, reason=reason, limit=limit, actual=actual)


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


class OpenRequests:
    """Looks requests up, adds them, and drops each with its last choice."""

    def __init__(self, *, page_size_tokens: int, shares_prefixes: bool) -> None:
        self._page_size_tokens = page_size_tokens
        self._shares_prefixes = shares_prefixes
        self._requests: dict[RequestId, Request] = {}
        self.by_id: Mapping[RequestId, Request] = MappingProxyType(self._requests)
        self.tenants = Tenants()
        self._next_arrival = 0

    def streams_by_tenant(self) -> Counter[str]:
        return Counter({tenant.name: tenant.open_requests for tenant in self.tenants if tenant.open_requests})

    def of(self, sequence: Sequence) -> Request:
        return self._requests[sequence.request]

    def find(self, worker: TextId, request_id: RequestId) -> Request | None:
        """None where it ended or never was. Raises InvariantViolated where another worker speaks for it."""
        request = self._requests.get(request_id)
        if request is not None and request.worker.worker != worker:
            raise InvariantViolated(
                f"text worker {worker} speaks for request {request_id} of text worker {request.worker.worker}"
            )
        return request

    def add(self, admit: Admit, worker: TextWorker, *, now_us: int, least_served: int) -> Request:
        """The record of a request that is taken; `least_served` as in `Tenants`."""
        prompt, end_ids = unpack_i32(admit.prompt_ids), frozenset(admit.sampling.end_ids)
        tenant = self.tenants.open_request(admit.placement.tenant, least_served=least_served)
        cache_root = admit.placement.cache_root(shares_prefixes=self._shares_prefixes)
        sequences = [
            Sequence(
                admit=admit,
                request=admit.request,
                choice=choice,
                worker=worker,
                tenant=tenant,
                arrival=self._next_arrival + choice,
                prompt_tokens=len(prompt),
                plan_limit_tokens=len(prompt) + admit.max_tokens - 1,
                cache_root=cache_root,
                end_ids=end_ids,
                tokens=prompt + unpack_i32(output_ids),
                output_tokens=rows("i", output_ids),
            )
            for choice, output_ids in enumerate(admit.output_ids or (b"",) * admit.choices)
        ]
        request = Request(
            worker=worker,
            sequences=tuple(sequences),
            sharable_pages=(len(prompt) - 1) // self._page_size_tokens,
            queued_us=now_us,
            open_choices=admit.choices,
        )
        self._next_arrival += admit.choices
        self._requests[admit.request] = request
        return request

    def choice_ended(self, sequence: Sequence) -> Request:
        """The record of its request, which is gone with its last choice."""
        request = self._requests[sequence.request]
        request.open_choices -= 1
        if not request.open_choices:
            del self._requests[sequence.request]
            self.tenants.close_request(sequence.tenant)
        return request


@attrs.define(eq=False)
class QueueDeadlines:
    """The requests of which nothing has started, oldest first.

    Every request may wait equally long, so the one that came first is the first whose time is over, and none that comes later
    is over sooner. Who has started is out: a preempted choice was promised its end.
    """

    _max_queue_us: int | None
    """None: nobody waits too long."""
    _queued_us: dict[RequestId, int] = attrs.field(init=False, factory=dict)

    def __len__(self) -> int:
        return len(self._queued_us)

    def came(self, request: RequestId, now_us: int) -> None:
        if self._max_queue_us is not None:
            self._queued_us[request] = now_us

    def gone(self, request: RequestId) -> None:
        """It started or ended; harmless when repeated."""
        self._queued_us.pop(request, None)

    def overdue(self, now_us: int) -> list[RequestId]:
        """Those whose time is over. Takes time in proportion to them alone."""
        found: list[RequestId] = []
        for request, queued_us in self._queued_us.items():
            if self._max_queue_us is None or now_us < queued_us + self._max_queue_us:
                break
            found.append(request)
        return found

    def next_us(self, now_us: int) -> int | None:
        """When to look again: before that nobody's time is over, whoever comes meanwhile. None for never."""
        if self._max_queue_us is None:
            return None
        return next(iter(self._queued_us.values()), now_us) + self._max_queue_us
