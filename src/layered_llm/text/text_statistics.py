"""Figures of the text core: what it counted since its start, and its state at one moment.

Must not know: scraping.
"""

from collections import Counter
from collections.abc import Collection, Mapping

import attrs

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import ApiId
from layered_llm.domain.metrics import ABORTS_EMITTED, ABORTS_HANDLED, ABORTS_LATE, counter
from layered_llm.domain.verdicts import RejectReason


@attrs.define(kw_only=True)
class Counters:
    """What only grows; written by the text core alone."""

    requests_submitted: int = 0
    requests_accepted: int = 0
    requests_confirmed: int = 0
    requests_dropped: int = 0
    """Left while they were prepared: the scheduler never heard of them."""
    questions_answered: int = counter("questions_answered_total", "Questions about the tokenizer that were answered.")
    prompt_tokens: int = counter("prompt_tokens_total", "Prompt tokens of accepted requests.")
    generation_tokens: int = counter(
        "generation_tokens_total", "Output tokens of choices that ended, as their usage counts them."
    )
    stop_strings_matched: int = counter("stop_strings_matched_total", "Choices that a stop string ended.")
    steps_taken: int = 0
    aborts_handled: int = counter(ABORTS_HANDLED)
    """Aborts by API processes that ended here. Those emitted are handled + forwarded + late."""
    aborts_forwarded: int = 0
    """Aborts by API processes that went on to the scheduler, which counts them as handled or late."""
    aborts_late: int = counter(ABORTS_LATE)
    """Aborts by API processes of requests that had ended, were aborted before, or never were."""
    aborts_own: int = 0
    """Sent to the scheduler because an API process died or took no messages."""
    aborts_taken: Counter[ApiId] = attrs.field(factory=Counter)
    """Those by API processes, by their sender."""
    aborts_of_forgotten: int = 0
    """By API processes that died long ago, which `aborts_taken` has no more."""
    finished: Counter[FinishReason] = attrs.field(factory=Counter)
    """Choices whose end the API process knows."""
    rejected: Counter[RejectReason] = attrs.field(factory=Counter)
    """Requests not taken, by this process or by the scheduler."""


@attrs.frozen(kw_only=True)
class TextStatistics:
    """One moment of the text core."""

    open_requests: int
    counters: Counters
    aborts_emitted: Mapping[str, int] = counter(ABORTS_EMITTED, label="reason")
    """What this worker says for API processes, so that emitted = handled + late + lost over all processes: those that it gives
    in their place, and those that came from processes that are gone since."""
    maps: tuple[tuple[str, int], ...]
    """Name and size of every per-request map: all 0 when no request is open."""


def summarize(counters: Counters, *, preparing: int, admitted: int, gone: Collection[ApiId]) -> TextStatistics:
    of_the_gone = sum(count for api, count in counters.aborts_taken.items() if api in gone)
    return TextStatistics(
        open_requests=preparing + admitted,
        counters=attrs.evolve(
            counters,
            aborts_taken=counters.aborts_taken.copy(),
            finished=counters.finished.copy(),
            rejected=counters.rejected.copy(),
        ),
        aborts_emitted={"process_gone": counters.aborts_of_forgotten + of_the_gone, "text_worker": counters.aborts_own},
        maps=(("preparing", preparing), ("admitted", admitted)),
    )
