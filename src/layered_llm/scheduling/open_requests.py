"""The requests that were taken and have not ended, whose they are, and which have waited too long to start.

Must not know: steps, pages, what a choice is doing, clocks (time comes in as an argument).

Invariants: nothing is kept for a request that ended. Choices are numbered in the order in which they came.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import attrs

from layered_llm.domain.columns import rows, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.messages.text_scheduler import Admit
from layered_llm.scheduling.sequences import Request, Sequence, TextWorker
from layered_llm.scheduling.tenants import Tenants


class OpenRequests:
    """Looks requests up, adds them, and drops each with its last choice."""

    def __init__(self, *, page_size_tokens: int) -> None:
        self._page_size_tokens = page_size_tokens
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
