"""Who is taken at all.

Must not know: steps, page ids, what runs.
"""

import attrs

from layered_llm.domain.columns import rows
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.text_scheduler import Admit, Refused
from layered_llm.domain.verdicts import RejectReason
from layered_llm.scheduling.policy import SchedulingPolicy


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
        return _refuse(admit, RejectReason.CONTEXT_LENGTH_EXCEEDED, limits.context_tokens, tokens)
    if pages > limits.pages:
        return _refuse(admit, RejectReason.NEVER_FITS, limits.pages, pages)
    if policy.max_streams_per_tenant is not None and load.tenant_streams >= policy.max_streams_per_tenant:
        return _refuse(admit, RejectReason.TOO_MANY_STREAMS, policy.max_streams_per_tenant, load.tenant_streams)
    if policy.max_streams is not None and load.streams >= policy.max_streams:
        return _refuse(admit, RejectReason.SERVER_FULL, policy.max_streams, load.streams)
    if load.waiting_requests >= policy.max_queued_requests:
        return _refuse(admit, RejectReason.QUEUE_FULL, policy.max_queued_requests, load.waiting_requests)
    return None


def _refuse(admit: Admit, reason: RejectReason, limit: int, actual: int) -> Refused:
    return Refused(request=admit.request, reason=reason, limit=limit, actual=actual)
