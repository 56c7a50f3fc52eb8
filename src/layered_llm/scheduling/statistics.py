"""Figures of the scheduler: what it counted since its start, and its state at one moment.

Must not know: scraping.
"""

from collections import Counter
from collections.abc import Mapping

import attrs

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import TextId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.metrics import ABORTS_HANDLED, ABORTS_LATE, counter, gauge
from layered_llm.domain.verdicts import RefuseReason
from layered_llm.scheduling.flight import AbortReleases, StepsInFlight
from layered_llm.scheduling.open_requests import OpenRequests, QueueDeadlines
from layered_llm.scheduling.running import RunningChoices
from layered_llm.scheduling.sequences import TextWorker
from layered_llm.scheduling.waiting import WaitingQueue


@attrs.define(kw_only=True)
class Counters:
    """What only grows; written by the scheduler alone."""

    requests_accepted: int = 0
    choices_accepted: int = 0
    aborts_handled: int = counter(ABORTS_HANDLED)
    aborts_late: int = counter(ABORTS_LATE)
    """Aborts of requests that had ended or never were."""
    stops_handled: int = counter("stops_handled_total", "Stop strings that ended a choice in the scheduler.")
    stops_late: int = counter("stops_late_total", "Stop strings that found their choice already ended.")
    queue_timeouts: int = counter("queue_timeouts_total", "Requests that were ended since nothing of them had started in time.")
    steps: int = counter("steps_total", "Steps that the runtime executed.")
    """Acknowledged ones."""
    prefill_tokens: int = counter("prompt_tokens_computed_total", "Prompt tokens that were computed in steps.")
    """Those of outputs, too, that were computed again after a preemption."""
    decode_tokens: int = counter(
        "generation_tokens_computed_total", "Output tokens that were computed in steps as their input."
    )
    """Surplus ones with them."""
    dropped_tokens: int = counter("surplus_tokens_total", "Sampled tokens that were dropped, since their choice had ended.")
    preemptions: int = counter("preemptions_total", "Running choices that were put back to be computed again.")
    prefix_lookup_tokens: int = counter(
        "prefix_cache_lookup_tokens_total", "Tokens of starting choices, looked up in the prefix index."
    )
    """Again after each preemption."""
    prefix_hit_tokens: int = counter("prefix_cache_hit_tokens_total", "Tokens of starting choices, found in the prefix index.")
    finished: Counter[FinishReason] = attrs.field(factory=Counter)
    """Choices that ended; their sum and the open choices are `choices_accepted`."""
    refused: Counter[RefuseReason] = counter(
        "requests_refused_total", "Requests that the scheduler refused, by reason.", label="reason"
    )


@attrs.frozen(kw_only=True)
class SchedulerStatistics:
    """One moment of the scheduler."""

    running_choices: int = gauge("running", "requests_running", "Choices that hold a slot.")
    waiting_choices: int = gauge("waiting", "requests_waiting", "Choices that wait for their first step.")
    pages_total: int = gauge("pages_total", "kv_pages_total", "Pages of the KV cache.")
    pages_free: int = gauge("pages_free", "kv_pages_free", "Pages that hold nothing.")
    pages_cached: int = gauge("pages_cached", "kv_pages_cached", "Pages that only the prefix index holds; they can be evicted.")
    pages_used: int = gauge("pages_used", "kv_pages_used", "Pages that requests hold.")
    """Or that a step in flight still names."""
    pages_quarantined: int = gauge("pages_quarantined")
    """Nobody's, but a step in flight still names them. Free, cached, used and quarantined pages are all pages."""
    pages_reserved: int = gauge("pages_reserved")
    """Pages that choices were started for and have not taken yet."""
    steps_in_flight: int = gauge("steps_in_flight")

    waiting_requests: int
    open_requests: int
    counters: Counters
    pages_evicted: int = counter("kv_pages_evicted_total", "Pages of the prefix index that were given to somebody else.")
    aborts_taken: tuple[tuple[TextId, int], ...]
    """Late and handled ones, by the text worker that they came from."""
    maps: tuple[tuple[str, int], ...]
    """Name and size of every map that has entries for requests: all 0 when no request is open and no step in flight."""


@attrs.frozen(kw_only=True)
class SchedulerState:
    """Everything that a scheduler keeps."""

    limits: RuntimeLimits
    counters: Counters
    workers: Mapping[TextId, TextWorker]
    open: OpenRequests
    waiting: WaitingQueue
    running: RunningChoices
    flight: StepsInFlight
    queue_deadlines: QueueDeadlines
    releases: AbortReleases


def summarize(state: SchedulerState) -> SchedulerStatistics:
    counters, waiting, running, pages = state.counters, state.waiting, state.running, state.running.pages
    return SchedulerStatistics(
        running_choices=running.count,
        waiting_choices=waiting.choice_count,
        waiting_requests=waiting.request_count,
        open_requests=len(state.open.by_id),
        steps_in_flight=len(state.flight.steps),
        pages_total=pages.total,
        pages_free=pages.free,
        pages_cached=pages.cached,
        pages_used=pages.total - pages.available - pages.quarantined,
        pages_quarantined=pages.quarantined,
        pages_reserved=running.pages_promised,
        counters=attrs.evolve(counters, finished=counters.finished.copy(), refused=counters.refused.copy()),
        pages_evicted=pages.evicted,
        aborts_taken=tuple((worker.worker, worker.aborts_taken) for worker in state.workers.values()),
        maps=(
            ("requests", len(state.open.by_id)),
            ("tenants", state.open.tenants.count),
            ("queue_deadlines", len(state.queue_deadlines)),
            ("aborts_to_release", len(state.releases)),
            ("waiting", waiting.choice_count),
            ("waiting_by_request", waiting.request_count),
            ("waiting_by_tenant", waiting.tenant_count),
            ("prefilling", len(running.prefilling)),
            ("decoding", len(running.decoding)),
            ("slots_to_retire", running.slots_to_retire),
            ("slots_with_replaced_pages", running.slots_with_replaced_pages),
            ("steps_in_flight", len(state.flight.steps)),
        ),
    )
