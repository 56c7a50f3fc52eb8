"""Figures of the text core: what it counted since its start, and where it stands.

Must not know: metric names, scraping.
"""

from collections import Counter
from collections.abc import Collection

import attrs

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import ApiId
from layered_llm.domain.verdicts import RejectReason


@attrs.define(kw_only=True)
class Counters:
    """What only grows; written by the text core alone."""

    requests_submitted: int = 0
    requests_accepted: int = 0
    requests_confirmed: int = 0
    requests_dropped: int = 0
    questions_answered: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    stop_strings_matched: int = 0
    steps_taken: int = 0
    aborts_handled: int = 0
    aborts_forwarded: int = 0
    aborts_late: int = 0
    aborts_own: int = 0
    aborts_taken: Counter[ApiId] = attrs.field(factory=Counter)
    aborts_of_forgotten: int = 0
    """By API processes that died long ago, which `aborts_taken` has no more."""
    finished: Counter[FinishReason] = attrs.field(factory=Counter)
    rejected: Counter[RejectReason] = attrs.field(factory=Counter)


@attrs.frozen(kw_only=True)
class TextStatistics:
    """One moment of the text core."""

    open_requests: int
    requests_submitted: int
    requests_accepted: int
    requests_dropped: int
    """Left while they were prepared: the scheduler never heard of them."""
    prompt_tokens: int
    """Of accepted requests."""
    generation_tokens: int
    """That count in the usage of choices whose end was told."""
    questions_answered: int
    """About the tokenizer."""
    stop_strings_matched: int
    steps_taken: int
    aborts_handled: int
    """Aborts by API processes that ended here. Those emitted are handled + forwarded + late."""
    aborts_forwarded: int
    """Aborts by API processes that the scheduler was told of; it counts them as handled or late."""
    aborts_late: int
    """Aborts by API processes of requests that had ended, were aborted before, or never were."""
    aborts_own: int
    """Told to the scheduler because an API process died or fell behind."""
    aborts_taken: tuple[tuple[ApiId, int], ...]
    """Those by API processes, by their sender."""
    aborts_of_the_gone: int
    """The part of them whose senders are not there any more to report them."""
    finished: tuple[tuple[FinishReason, int], ...]
    """Choices whose end was told, by reason."""
    rejected: tuple[tuple[RejectReason, int], ...]
    """Requests not taken, by this process or by the scheduler, by reason."""
    maps: tuple[tuple[str, int], ...]
    """Name and size of every per-request map: all 0 when no request is open."""


def summarize(counters: Counters, *, preparing: int, admitted: int, gone: Collection[ApiId]) -> TextStatistics:
    return TextStatistics(
        open_requests=preparing + admitted,
        requests_submitted=counters.requests_submitted,
        requests_accepted=counters.requests_accepted,
        requests_dropped=counters.requests_dropped,
        prompt_tokens=counters.prompt_tokens,
        generation_tokens=counters.generation_tokens,
        questions_answered=counters.questions_answered,
        stop_strings_matched=counters.stop_strings_matched,
        steps_taken=counters.steps_taken,
        aborts_handled=counters.aborts_handled,
        aborts_forwarded=counters.aborts_forwarded,
        aborts_late=counters.aborts_late,
        aborts_own=counters.aborts_own,
        aborts_taken=tuple(sorted(counters.aborts_taken.items())),
        aborts_of_the_gone=counters.aborts_of_forgotten
        + sum(count for api, count in counters.aborts_taken.items() if api in gone),
        finished=tuple(sorted(counters.finished.items())),
        rejected=tuple(sorted(counters.rejected.items())),
        maps=(("preparing", preparing), ("admitted", admitted)),
    )
