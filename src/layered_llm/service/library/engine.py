"""The engine as a program under trio uses it.

Must not know: how the engine is run, threads, HTTP.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import attrs
import trio

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import RequestId
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.api_text import (
    Accepted,
    Detokenize,
    Detokenized,
    Rejected,
    TextAnswer,
    TextQuestion,
    Tokenize,
    Tokenized,
)
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import EnginePhase
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.library import inputs
from layered_llm.service.library.batch import Batch, OnProgress, OnTokens
from layered_llm.service.library.errors import EngineClosed, RequestRejected, check_process
from layered_llm.service.library.inputs import PromptLike
from layered_llm.service.library.results import Collector, Completion, EngineReport, to_report
from layered_llm.service.library.stream import CompletionStream

_LAST_ABORTS_S: Final = 10.0
"""Longer than any step that an aborted request may still be in."""
_ASK_AGAIN_S: Final = 0.002


@attrs.define(eq=False)
class Engine:
    """Made by `open_engine`, and used by any task inside its block.

    Every method raises ParameterError for what cannot be submitted, RequestRejected for what the engine does not take,
    EngineLost when the engine died, EngineClosed after the block and in a process that was forked from this one, and
    RuntimeError elsewhere than in the `trio.run()` that opened the engine.
    """

    _client: EngineClient
    _model_name: str
    _limits: EngineLimits
    _max_open: int
    _is_closed: bool = False
    _pid: int = attrs.field(factory=os.getpid)
    _loop: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)

    @property
    def model_name(self) -> str:
        return self._model_name

    @property
    def limits(self) -> EngineLimits:
        """Length of the context, size of the vocabulary."""
        return self._limits

    @contextlib.asynccontextmanager
    async def open_stream(self, prompt: PromptLike, params: SamplingParams | None = None) -> AsyncIterator[CompletionStream]:
        """Opens a request that lives as long as the block; the block begins when the engine has queued it.

        Leaving the block before the end, by whatever way, aborts the request: one abort is on its way before the block is
        left, and nothing can be cancelled in between.
        """
        async with self._open(inputs.to_prompt(prompt), inputs.to_params(params)) as stream:
            yield stream

    async def generate(self, prompt: PromptLike, params: SamplingParams | None = None) -> Completion:
        """The whole answer. Cancelling the call aborts the request. Raises RequestFailed too."""
        return await self._generate(inputs.to_prompt(prompt), inputs.to_params(params), _ignore)

    async def generate_many(
        self,
        prompts: Sequence[PromptLike],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> list[Completion]:
        """The answers in the order of the prompts, batched by the engine; `params` are for all prompts, or one for each.

        All prompts are checked before the first is submitted. No more are open at a time than the engine can queue. The
        first failure aborts the others and is raised. `on_progress` is called at the start, and whenever something came.
        """
        checked = inputs.to_prompts(prompts)
        self._check_place()
        jobs = tuple(zip(checked, inputs.to_all_params(params, len(checked)), strict=True))
        return await Batch(jobs, self._generate, on_progress).run(self._max_open)

    async def tokenize(self, prompt: PromptLike) -> list[int]:
        """The ids of the tokens that a request with this prompt has, also where they are more than the context holds."""
        checked = inputs.to_prompt(prompt)
        answer = await self._ask(lambda request: Tokenize(request=request, prompt=checked))
        match answer:
            case Tokenized(token_ids=token_ids):
                return unpack_i32(token_ids).tolist()
            case _:
                raise InvariantViolated(f"a Tokenize is answered with {type(answer).__name__}")

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of these tokens."""
        packed = inputs.to_token_ids(token_ids)
        skips = bool(skip_special_tokens)
        answer = await self._ask(lambda request: Detokenize(request=request, token_ids=packed, skip_special_tokens=skips))
        match answer:
            case Detokenized(text=text):
                return text
            case _:
                raise InvariantViolated(f"a Detokenize is answered with {type(answer).__name__}")

    async def state(self) -> EngineReport:
        """What the engine holds now; the question never waits behind requests."""
        self._check_place()
        return to_report(await self._client.state())

    async def is_quiescent(self) -> bool:
        """Whether nothing is open, nothing is left of what was, and every page is back.

        Where nothing is open any more, aborts may still be on their way: they are waited for.
        """
        report = await self.state()
        with trio.move_on_after(_LAST_ABORTS_S):
            while not (report.is_quiescent or report.open_requests or report.silent or report.violations):
                await trio.sleep(_ASK_AGAIN_S)
                report = await self.state()
        return report.is_quiescent

    def close(self) -> None:
        """The block is over."""
        self._is_closed = True

    @contextlib.asynccontextmanager
    async def _open(self, prompt: Prompt, params: SamplingParams) -> AsyncIterator[CompletionStream]:
        await self._until_ready()
        with contextlib.ExitStack() as owner:
            opened = self._client.open(owner, prompt, params)
            if isinstance(opened, Rejected):
                raise RequestRejected(opened)
            try:
                verdict = await opened.verdict()
            except EngineLost:
                raise self._lost() from None
            if not isinstance(verdict, Accepted):
                raise RequestRejected(verdict)
            stream = CompletionStream(opened, verdict, self._check_open, self._lost)
            owner.callback(stream.leave)
            yield stream

    async def _ask(self, question: Callable[[RequestId], TextQuestion]) -> TextAnswer:
        await self._until_ready()
        with contextlib.ExitStack() as owner:
            asked = self._client.ask(owner, question)
            try:
                answer = asked if isinstance(asked, Rejected) else await asked.answer()
            except EngineLost:
                raise self._lost() from None
        if isinstance(answer, Rejected):
            raise RequestRejected(answer)
        return answer

    async def _generate(self, prompt: Prompt, params: SamplingParams, on_tokens: OnTokens) -> Completion:
        collector = Collector()
        async with self._open(prompt, params) as stream:
            async for delta in stream:
                collector.add(delta)
                on_tokens(len(delta.token_ids))
            usage, prompt_token_ids = stream.usage, stream.prompt_token_ids
        if usage is None:
            raise InvariantViolated("a stream ended without its usage")
        return collector.completion(usage, prompt_token_ids)

    async def _until_ready(self) -> None:
        """An engine of processes that restarts after a death is waited for."""
        self._check_place()
        while True:
            self._check_open()
            match self._client.status().phase:
                case EnginePhase.READY:
                    return
                case EnginePhase.FAILED:
                    raise self._lost()
                case EnginePhase.STARTING | EnginePhase.RESTARTING | EnginePhase.STOPPING:
                    await self._client.status_change()

    def _check_place(self) -> None:
        """Under another loop, or none, a call would wait for ever, and could break this one."""
        self._check_open()
        if not trio.lowlevel.in_trio_task() or trio.lowlevel.current_trio_token() is not self._loop:
            raise RuntimeError(
                "the engine is used elsewhere than in the trio.run() that opened it; "
                "from another thread call trio.from_thread.run(), or use layered_llm.LLM"
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed()
        check_process(self._pid)

    def _lost(self) -> EngineClosed | EngineLost:
        """What a request that lost the engine raises: whoever left the block ended it."""
        if self._is_closed:
            return _closed()
        return EngineLost(f"the engine is lost: {self._client.status().detail}")


def _closed() -> EngineClosed:
    return EngineClosed("the block of the engine was left")


def _ignore(_tokens: int) -> None:
    pass
