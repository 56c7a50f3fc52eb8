"""Many prompts at once, with a bound on how many are open.

Must not know: how one is generated, threads.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence

import attrs
import trio

from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.library.errors import EngineClosed, RequestFailed, RequestRejected
from layered_llm.service.library.results import Completion, Progress
from layered_llm.service.server.embedded import without_group

OnProgress = Callable[[Progress], None]
OnTokens = Callable[[int], None]
Job = tuple[Prompt, SamplingParams]
Generate = Callable[[Prompt, SamplingParams, OnTokens], Awaitable[Completion]]


@attrs.define(eq=False)
class Batch:
    """One call's prompts. The first failure ends the others, and is raised."""

    _jobs: Sequence[Job]
    _generate: Generate
    _on_progress: OnProgress | None
    _completions: dict[int, Completion] = attrs.field(factory=dict)
    _tokens: int = 0
    _failure: Exception | None = None

    async def run(self, max_open: int) -> list[Completion]:
        """The completions in the order of the prompts, of which at most `max_open` are under way at a time."""
        self._tell()
        places = iter(range(len(self._jobs)))
        with without_group():
            async with trio.open_nursery() as nursery:
                for _ in range(min(max_open, len(self._jobs))):
                    nursery.start_soon(self._work, places, nursery.cancel_scope)
        if self._failure is not None:
            raise self._failure
        return [self._completions[place] for place in range(len(self._jobs))]

    async def _work(self, places: Iterator[int], batch: trio.CancelScope) -> None:
        for place in places:
            prompt, params = self._jobs[place]
            try:
                self._completions[place] = await self._generate(prompt, params, self._count)
            except (RequestRejected, RequestFailed) as error:
                self._fail(error if len(self._jobs) == 1 else error.of_prompt(f"prompts[{place}]"), batch)
                return
            except (EngineLost, EngineClosed) as error:
                self._fail(error, batch)
                return
            self._tell()

    def _fail(self, error: Exception, batch: trio.CancelScope) -> None:
        self._failure = self._failure or error
        batch.cancel(reason="another prompt of the batch failed")

    def _count(self, tokens: int) -> None:
        self._tokens += tokens
        self._tell()

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(Progress(done=len(self._completions), total=len(self._jobs), completion_tokens=self._tokens))
