"""The engine for programs without an event loop: calls that block, and the progress bar of a batch.

Must not know: trio, how the engine is run.
"""

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Self, TypeAlias

from tqdm import tqdm

from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.library import inputs
from layered_llm.service.library.background import EngineThread
from layered_llm.service.library.batch import OnProgress
from layered_llm.service.library.engine import Engine
from layered_llm.service.library.inputs import Message, PromptLike
from layered_llm.service.library.opening import open_engine, to_settings
from layered_llm.service.library.results import Completion, EngineReport, Progress

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


ParamsLike: TypeAlias = SamplingParams | Sequence[SamplingParams] | None
"""One for all prompts, or one for each."""


class LLM:
    """An engine in a thread of its own.

    A context manager; without it, `close()` ends the engine, at the latest the end of the program does. Its methods may be
    called from several threads at once. Ctrl-C during a call aborts what the call had open, and the engine goes on. In a
    process that was forked from this one every call raises EngineClosed, and `close()` does nothing.

    In a program that runs asyncio, call `await asyncio.to_thread(llm.generate, …)`: a method called in the event loop's own
    thread would hold the loop up.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, *, processes: bool = False, **settings: Any) -> None:
        """Returns when the engine is ready. The arguments are those of `open_engine`, and so are the errors."""
        to_settings(model, settings, processes=processes)
        self._thread = EngineThread(partial(open_engine, model, processes=processes, **settings))
        finalizer = weakref.finalize(self, self._thread.request_stop)
        finalizer.atexit = False  # by then the thread has seen the end of the main thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def model_name(self) -> str:
        return self._thread.engine.model_name

    @property
    def limits(self) -> EngineLimits:
        """Length of the context, size of the vocabulary."""
        return self._thread.engine.limits

    def generate(
        self, prompts: PromptLike | Sequence[PromptLike], params: ParamsLike = None, *, progress: bool = True
    ) -> list[Completion]:
        """Completions in the order of the prompts, which are batched by the engine.

        Args:
            prompts: one prompt (a text, a list of messages, a list of token ids), or a list of prompts, which may be empty.
            params: for all prompts, or a list with one for each.
            progress: whether a progress bar is shown on standard error.

        Raises ParameterError before anything is submitted; RequestRejected, RequestFailed or EngineLost for the first prompt
        that fails, with the others aborted; EngineClosed after `close`.
        """
        self._thread.check_process()
        many = inputs.as_prompts(prompts)
        shown = progress_bar(len(many)) if progress else contextlib.nullcontext()
        with shown as on_progress:

            async def work(engine: Engine) -> list[Completion]:
                return await engine.generate_many(many, params, on_progress=on_progress)

            return self._thread.call(work)

    def chat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], params: ParamsLike = None, *, progress: bool = True
    ) -> list[Completion]:
        """The answers to one conversation, or to a list of conversations; else as `generate`."""
        return self.generate(inputs.as_conversations(messages), params, progress=progress)

    def tokenize(self, prompt: PromptLike) -> list[int]:
        """The ids of the tokens that a request with this prompt has, also where they are more than the context holds."""
        return self._thread.call(lambda engine: engine.tokenize(prompt))

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of these tokens."""
        return self._thread.call(lambda engine: engine.detokenize(token_ids, skip_special_tokens=skip_special_tokens))

    def state(self) -> EngineReport:
        """What the engine holds now."""
        return self._thread.call(lambda engine: engine.state())

    def is_quiescent(self) -> bool:
        """Whether nothing is open, nothing is left of what was, and every page is back."""
        return self._thread.call(lambda engine: engine.is_quiescent())

    def close(self) -> None:
        """Ends what is open, then the engine; no thread and no process is left. Harmless when repeated."""
        self._thread.close()
