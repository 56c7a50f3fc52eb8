"""State reports out of the cores' statistics: the names that `/debug/state` and `/metrics` show.

Must not know: how a report travels or is rendered.
"""

from typing import TYPE_CHECKING

from layered_llm.domain.messages.supervision import AbortTally, Role, StateReport

if TYPE_CHECKING:  # a process reports of one core, and would import the others' for it
    from layered_llm.scheduling.statistics import SchedulerStatistics
    from layered_llm.text.text_statistics import TextStatistics

Samples = tuple[tuple[str, float], ...]


def scheduler_report(
    statistics: "SchedulerStatistics", histograms: Samples, violations: tuple[str, ...], *, query: int, pid: int
) -> StateReport:
    return StateReport(
        query=query,
        role=Role.SCHEDULER,
        index=0,
        pid=pid,
        open_requests=statistics.open_requests,
        maps=statistics.maps,
        gauges=(
            ("running", statistics.running_choices),
            ("waiting", statistics.waiting_choices),
            ("pages_total", statistics.pages_total),
            ("pages_free", statistics.pages_free),
            ("pages_cached", statistics.pages_cached),
            ("pages_used", statistics.pages_used),
            ("pages_quarantined", statistics.pages_quarantined),
            ("pages_reserved", statistics.pages_reserved),
            ("steps_in_flight", statistics.steps_in_flight),
        ),
        samples=(*_scheduler_samples(statistics), *histograms),
        violations=violations,
        aborts_taken=tuple(AbortTally(peer=Role.TEXT, index=text, aborts=aborts) for text, aborts in statistics.aborts_taken),
    )


def _scheduler_samples(statistics: "SchedulerStatistics") -> Samples:
    counters = {
        "aborts_handled": statistics.aborts_handled,
        "aborts_late": statistics.aborts_late,
        "stops_handled": statistics.stops_handled,
        "stops_late": statistics.stops_late,
        "queue_timeouts": statistics.queue_timeouts,
        "steps": statistics.steps,
        "prompt_tokens_computed": statistics.prefill_tokens,
        "generation_tokens_computed": statistics.decode_tokens,
        "surplus_tokens": statistics.dropped_tokens,
        "preemptions": statistics.preemptions,
        "prefix_cache_lookup_tokens": statistics.prefix_lookup_tokens,
        "prefix_cache_hit_tokens": statistics.prefix_hit_tokens,
        "kv_pages_evicted": statistics.pages_evicted,
    }
    refused = (
        (f'layered_llm_requests_refused_total{{reason="{reason.name.lower()}"}}', float(count))
        for reason, count in statistics.refused
    )
    return (*((f"layered_llm_{name}_total", float(count)) for name, count in counters.items()), *refused)


def runtime_report(open_slots: int, *, query: int, rank: int, pid: int) -> StateReport:
    """The runtime has no event loop to be asked: the scheduler says what the last step's result told."""
    return StateReport(
        query=query, role=Role.RUNTIME, index=rank, pid=pid, open_requests=open_slots, maps=(("slots", open_slots),)
    )


def text_report(statistics: "TextStatistics", violations: tuple[str, ...], *, query: int, index: int, pid: int) -> StateReport:
    return StateReport(
        query=query,
        role=Role.TEXT,
        index=index,
        pid=pid,
        open_requests=statistics.open_requests,
        maps=statistics.maps,
        samples=_text_samples(statistics),
        violations=violations,
        aborts_sent=(AbortTally(peer=Role.SCHEDULER, index=0, aborts=statistics.aborts_forwarded + statistics.aborts_own),),
        aborts_taken=tuple(AbortTally(peer=Role.API, index=api, aborts=aborts) for api, aborts in statistics.aborts_taken),
    )


def _text_samples(statistics: "TextStatistics") -> Samples:
    """So that emitted = handled + late + lost over all processes, this worker says for API processes what they do not: the
    aborts that it gives in their place, and those that came from processes that are gone since.
    """
    counters = {
        'aborts_emitted_total{reason="process_gone"}': statistics.aborts_of_the_gone,
        'aborts_emitted_total{reason="text_worker"}': statistics.aborts_own,
        "aborts_handled_total": statistics.aborts_handled,
        "aborts_late_total": statistics.aborts_late,
        "prompt_tokens_total": statistics.prompt_tokens,
        "generation_tokens_total": statistics.generation_tokens,
        "questions_answered_total": statistics.questions_answered,
        "stop_strings_matched_total": statistics.stop_strings_matched,
    }
    return tuple((f"layered_llm_{name}", float(count)) for name, count in counters.items())
