"""Which requests have waited too long for their first choice to start.

Must not know: the queue, why a request cannot start, clocks (time comes in as an argument).

Every request may wait equally long, so the one that came first is the first whose time is over, and none that comes later is
over sooner. Who has started is out: a preempted choice was promised its end.
"""

import attrs

from layered_llm.domain.ids import RequestId


@attrs.define(eq=False)
class QueueDeadlines:
    """The requests of which nothing has started, oldest first."""

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
