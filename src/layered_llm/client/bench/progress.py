"""Shows on a terminal, or in a log, how far a run is.

Must not know: how requests are sent.
"""

from typing import Final, TextIO

import trio

from layered_llm.client.bench.tally import Progress, Tally

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
