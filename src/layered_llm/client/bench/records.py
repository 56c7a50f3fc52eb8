"""What was seen of one request, and of a whole run.

Must not know: how a request is sent, statistics, output formats.

All times are seconds on one monotonic clock.
"""

from collections.abc import Sequence

import attrs

from layered_llm.client.chunks import Usage


@attrs.frozen(kw_only=True)
class Failure:
    """Why a request did not end as asked."""

    kind: str
    """One of few: failures are counted by it."""
    message: str


@attrs.frozen(kw_only=True)
class RequestRecord:
    """One request that ended."""

    index: int
    due_s: float
    """When it should have been sent; latencies count from here, so that a late client hides no queueing."""
    sent_s: float
    chunk_times_s: tuple[float, ...]
    """Arrivals of the chunks that held output. A chunk may hold several tokens."""
    ended_s: float
    usage: Usage | None
    failure: Failure | None

    @property
    def first_token_s(self) -> float | None:
        """Latency of the first output; None when there was none."""
        return self.chunk_times_s[0] - self.due_s if self.chunk_times_s else None

    @property
    def end_to_end_s(self) -> float:
        return self.ended_s - self.due_s

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Times between successive chunks."""
        return tuple(later - earlier for earlier, later in zip(self.chunk_times_s, self.chunk_times_s[1:], strict=False))

    @property
    def per_output_token_s(self) -> float | None:
        """Mean time of an output token after the first; None when the server's counts or the chunks do not tell."""
        if self.usage is None or self.usage.completion_tokens < 2 or len(self.chunk_times_s) < 2:
            return None
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / (self.usage.completion_tokens - 1)


@attrs.frozen(kw_only=True)
class RunRecord:
    """All of a run, as far as it came."""

    duration_s: float
    requests: Sequence[RequestRecord]
    aborted: int
    """Requests that were open when the run was interrupted."""
    peak_open: int
    """Most requests open at once."""
    interrupted: bool
