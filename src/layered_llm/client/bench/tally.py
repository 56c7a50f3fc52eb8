"""Counts what a run has seen, while it goes on, and shows it on a terminal or in a log.

Must not know: how requests are sent, statistics.
"""

from typing import Final, TextIO

import attrs
import trio

from layered_llm.client.bench.records import RequestRecord, RunRecord


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
