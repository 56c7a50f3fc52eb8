"""The progress bar of a batch, on standard error.

Must not know: the engine, threads.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tqdm import tqdm

from layered_llm.service.library.batch import OnProgress
from layered_llm.service.library.results import Progress

_LINE_INTERVAL_S: Final = 10.0
_FORMAT: Final = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}{postfix}"


class _Lines:
    """A line with the first token, one every 10 s, and one at the end."""

    def __init__(self) -> None:
        self._begun_s = self._next_s = time.perf_counter()
        self._last: Progress | None = None

    def note(self, progress: Progress) -> None:
        self._last = progress
        if progress.completion_tokens and time.perf_counter() >= self._next_s:
            self.write()

    def write(self) -> None:
        if self._last is None:
            return
        now_s = time.perf_counter()
        self._next_s = now_s + _LINE_INTERVAL_S
        rate = self._last.completion_tokens / max(now_s - self._begun_s, 1e-9)
        sys.stderr.write(f"generating: {self._last.done}/{self._last.total}, {rate:.1f} tokens/s\n")


class _Bar(tqdm):  # type: ignore[misc] # tqdm has no types
    """Without tqdm's monitor thread, which would outlive the bar."""

    monitor_interval = 0


@contextmanager
def progress_bar(total: int) -> Iterator[OnProgress]:
    """Prompts done of `total`, and tokens per second of all of them together.

    Elsewhere than on a terminal they are lines: a bar that changes would be one long line of carriage returns in a log.
    """
    if not sys.stderr.isatty():
        lines = _Lines()
        try:
            yield lines.note
        finally:
            lines.write()
        return
    with _Bar(total=total, desc="generating", bar_format=_FORMAT, miniters=0) as bar:

        def show(progress: Progress) -> None:
            elapsed_s = bar.format_dict["elapsed"]
            rate = progress.completion_tokens / elapsed_s if elapsed_s > 0 else 0.0
            bar.set_postfix_str(f"{rate:.1f} tokens/s", refresh=False)
            bar.update(progress.done - bar.n)

        yield show
