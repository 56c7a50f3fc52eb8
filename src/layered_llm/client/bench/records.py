"""What was seen of one request and of a whole run, counted while it goes on and shown on a terminal or in a log.

Must not know: how a request is sent, statistics.

All times are seconds on one monotonic clock.
"""

from collections.abc import Sequence
from typing import Final, TextIO

import attrs
import trio

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


@attrs.frozen(kw_only=True)
class Progress:
    """A run at one instant."""

    elapsed_s: float
    ended: int
    failed: int
    open: int
    chunks: int
    output_tokens: int
    """Of requests that have ended: the server's counts come with the last chunk."""


class Tally:
    """What a run has seen so far; only the tasks of the run write it."""

    def __init__(self) -> None:
        self._began_s = trio.current_time()
        self._records: list[RequestRecord] = []
        self._open = 0
        self._peak_open = 0
        self._chunks = 0

    def opened(self) -> None:
        self._open += 1
        self._peak_open = max(self._peak_open, self._open)

    def chunk_arrived(self) -> None:
        self._chunks += 1

    def ended(self, record: RequestRecord) -> None:
        self._open -= 1
        self._records.append(record)

    def progress(self) -> Progress:
        return Progress(
            elapsed_s=trio.current_time() - self._began_s,
            ended=len(self._records),
            failed=sum(record.failure is not None for record in self._records),
            open=self._open,
            chunks=self._chunks,
            output_tokens=sum(record.usage.completion_tokens for record in self._records if record.usage is not None),
        )

    def close(self, *, interrupted: bool) -> RunRecord:
        """The run is over: what is still open counts as aborted."""
        return RunRecord(
            duration_s=trio.current_time() - self._began_s,
            requests=tuple(self._records),
            aborted=self._open,
            peak_open=self._peak_open,
            interrupted=interrupted,
        )


_TERMINAL_INTERVAL_S: Final = 0.25
_LOG_INTERVAL_S: Final = 10.0
_CLEAR_LINE: Final = "\r\x1b[K"


async def show_progress(tally: Tally, total: int | None, out: TextIO) -> None:
    """Runs until it is cancelled: one line that changes on a terminal, a line now and then elsewhere."""
    if not out.isatty():
        while True:
            await trio.sleep(_LOG_INTERVAL_S)
            out.write(progress_line(tally.progress(), total) + "\n")
            out.flush()
    try:
        while True:
            out.write(_CLEAR_LINE + progress_line(tally.progress(), total))
            out.flush()
            await trio.sleep(_TERMINAL_INTERVAL_S)
    finally:
        out.write(_CLEAR_LINE)
        out.flush()


def progress_line(progress: Progress, total: int | None) -> str:
    """Both rates are means since the start: tokens of answers that have ended, chunks of all."""
    elapsed_s = max(progress.elapsed_s, 1e-9)
    of_total = "" if total is None else f"/{total}"
    return (
        f"{progress.ended}{of_total} done, {progress.failed} failed, {progress.open} open | "
        f"{progress.output_tokens / elapsed_s:.1f} tokens/s, {progress.chunks / elapsed_s:.1f} chunks/s | "
        f"{progress.elapsed_s:.0f} s"
    )
