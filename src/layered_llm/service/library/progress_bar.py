"""The progress bar of a batch, on standard error.

Must not know: the engine, threads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tqdm import tqdm

from layered_llm.service.library.batch import OnProgress
from layered_llm.service.library.results import Progress

_FORMAT: Final = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}{postfix}"


class _Bar(tqdm):  # type: ignore[misc] # tqdm has no types
    """Without tqdm's monitor thread, which would outlive the bar."""

    monitor_interval = 0


@contextmanager
def progress_bar(total: int) -> Iterator[OnProgress]:
    """Prompts done of `total`, and tokens per second of all of them together."""
    with _Bar(total=total, desc="generating", bar_format=_FORMAT, miniters=0) as bar:

        def show(progress: Progress) -> None:
            elapsed_s = bar.format_dict["elapsed"]
            rate = progress.completion_tokens / elapsed_s if elapsed_s > 0 else 0.0
            bar.set_postfix_str(f"{rate:.1f} tokens/s", refresh=False)
            bar.update(progress.done - bar.n)

        yield show
