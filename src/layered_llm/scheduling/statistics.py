"""Figures of the scheduler: what it counted since its start, and where it stands.

Must not know: metric names, scraping.
"""

from collections import Counter
from collections.abc import Iterable

import attrs

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import TextId
from layered_llm.domain.verdicts import RejectReason
from layered_llm.scheduling.running import RunningChoices
from layered_llm.scheduling.sequences import TextWorker
from layered_llm.scheduling.waiting import WaitingQueue


@attrs.define(kw_only=True)
class Counters:
    """What only grows; written by the scheduler alone."""

    requests_accepted: int = 0
    choices_accepted: int = 0
    aborts_handled: int = 0
    aborts_late: int = 0
    stops_handled: int = 0
    stops_late: int = 0
    queue_timeouts: int = 0
    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    dropped_tokens: int = 0
    preemptions: int = 0
    prefix_lookup_tokens: int = 0
    prefix_hit_tokens: int = 0
    finished: Counter[FinishReason] = attrs.field(factory=Counter)
    refused: Counter[RejectReason] = attrs.field(factory=Counter)

    def count_step(self, *, prefill_tokens: int, decode_tokens: int) -> None:
        self.steps += 1
        self.prefill_tokens += prefill_tokens
        self.decode_tokens += decode_tokens

    def count_lookup(self, *, tokens: int, hit_tokens: int) -> None:
        self.prefix_lookup_tokens += tokens
        self.prefix_hit_tokens += hit_tokens


@attrs.frozen(kw_only=True)
class SchedulerStatistics:
    """One moment of the scheduler."""

    running_choices: int
    waiting_choices: int
    waiting_requests: int
    open_requests: int
    steps_in_flight: int

    pages_total: int
    pages_free: int
    pages_cached: int
    """Held by the prefix tree alone: they can be evicted at once."""
    pages_used: int
    """Held by choices that run, or that a step in flight still names."""
    pages_quarantined: int
    """Nobody's, but a step in flight still names them. Free, cached, used and quarantined pages are all pages."""
    pages_reserved: int
    """Pages that choices were started for and have not taken yet."""

    requests_accepted: int
    choices_accepted: int
    aborts_handled: int
    aborts_late: int
    """Aborts of requests that had ended or never were."""
    aborts_taken: tuple[tuple[TextId, int], ...]
    """Both together, by the text worker that they came from."""
    stops_handled: int
    stops_late: int
    queue_timeouts: int
    """Requests that were ended since nothing of them had started in time."""
    steps: int
    """Acknowledged ones."""
    prefill_tokens: int
    """Tokens of prompts that acknowledged steps computed, and of outputs that were computed again after a preemption."""
    decode_tokens: int
    """Output tokens that acknowledged steps computed, surplus ones with them."""
    dropped_tokens: int
    """Sampled for a choice that had ended meanwhile, and never shown."""
    preemptions: int
    prefix_lookup_tokens: int
    """Tokens of all choices that started, again after each preemption."""
    prefix_hit_tokens: int
    """The part of them that was found in the prefix tree."""
    pages_evicted: int
    finished: tuple[tuple[FinishReason, int], ...]
    """Choices that ended, by reason; their sum and the open choices are `choices_accepted`."""
    refused: tuple[tuple[RejectReason, int], ...]
    """Requests not taken, by reason."""
    maps: tuple[tuple[str, int], ...]
    """Name and size of every map that has entries for requests: all 0 when no request is open and no step in flight."""


def summarize(
    *,
    counters: Counters,
    workers: Iterable[TextWorker],
    open_requests: int,
    tenants: int,
    waiting: WaitingQueue,
    running: RunningChoices,
    steps_in_flight: int,
    deadlines: int,
    releases: int,
) -> SchedulerStatistics:
    pages = running.pages
    return SchedulerStatistics(
        running_choices=running.count,
        waiting_choices=waiting.choice_count,
        waiting_requests=waiting.request_count,
        open_requests=open_requests,
        steps_in_flight=steps_in_flight,
        pages_total=pages.total,
        pages_free=pages.free,
        pages_cached=pages.cached,
        pages_used=pages.total - pages.available - pages.quarantined,
        pages_quarantined=pages.quarantined,
        pages_reserved=running.pages_promised,
        requests_accepted=counters.requests_accepted,
        choices_accepted=counters.choices_accepted,
        aborts_handled=counters.aborts_handled,
        aborts_late=counters.aborts_late,
        aborts_taken=tuple((worker.worker, worker.aborts_taken) for worker in workers),
        stops_handled=counters.stops_handled,
        stops_late=counters.stops_late,
        queue_timeouts=counters.queue_timeouts,
        steps=counters.steps,
        prefill_tokens=counters.prefill_tokens,
        decode_tokens=counters.decode_tokens,
        dropped_tokens=counters.dropped_tokens,
        preemptions=counters.preemptions,
        prefix_lookup_tokens=counters.prefix_lookup_tokens,
        prefix_hit_tokens=counters.prefix_hit_tokens,
        pages_evicted=pages.evicted,
        finished=tuple(sorted(counters.finished.items())),
        refused=tuple(sorted(counters.refused.items())),
        maps=(
            ("requests", open_requests),
            ("tenants", tenants),
            ("queue_deadlines", deadlines),
            ("aborts_to_release", releases),
            *_map_sizes(waiting, running, steps_in_flight),
        ),
    )


def _map_sizes(waiting: WaitingQueue, running: RunningChoices, steps_in_flight: int) -> tuple[tuple[str, int], ...]:
    return (
        ("waiting", waiting.choice_count),
        ("waiting_by_request", waiting.request_count),
        ("waiting_by_tenant", waiting.tenant_count),
        ("prefilling", len(running.prefilling)),
        ("decoding", len(running.decoding)),
        ("slots_to_retire", running.slots_to_retire),
        ("slots_with_replaced_pages", running.slots_with_replaced_pages),
        ("steps_in_flight", steps_in_flight),
    )
