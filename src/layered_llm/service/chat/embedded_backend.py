"""Answers by an engine in this process.

Must not know: terminals, threads.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, assert_never

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.prompts import ChatMessage, Prompt
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import ChoiceDelta, RequestEnded
from layered_llm.domain.verdicts import RejectReason
from layered_llm.service.chat.backend import CannotOpen, ContextFull, End, Failed, Finished, Lost, Outcome, Piece
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.model.checkpoint import model_name
from layered_llm.service.server.embedded import EngineStartFailed, open_embedded_client
from layered_llm.service.settings.settings import Settings

_FULL: Final = (RejectReason.CONTEXT_LENGTH_EXCEEDED, RejectReason.NEVER_FITS)


@contextlib.asynccontextmanager
async def open_embedded_backend(settings: Settings) -> "AsyncIterator[EmbeddedBackend]":
    """A backend with a ready engine. Raises CannotOpen."""
    try:
        async with open_embedded_client(settings) as client:
            yield EmbeddedBackend(client, f"{model_name(settings.model)} on {settings.device}")
    except EngineStartFailed as error:
        raise CannotOpen(str(error)) from error


@attrs.frozen(eq=False)
class EmbeddedBackend:
    """Implements `ChatBackend`."""

    client: EngineClient
    title: str

    async def answer(
        self, messages: Sequence[ChatMessage], params: SamplingParams, on_piece: Callable[[Piece], None]
    ) -> Outcome:
        with contextlib.ExitStack() as owner:
            try:
                return await self._answer(owner, Prompt.of_chat(messages), params, on_piece)
            except EngineLost:
                return Lost(f"the engine ended: {self.client.status().detail}")

    async def _answer(
        self, owner: contextlib.ExitStack, prompt: Prompt, params: SamplingParams, on_piece: Callable[[Piece], None]
    ) -> Outcome:
        stream = self.client.open(owner, prompt, params)
        if isinstance(stream, Rejected):
            return _refused(stream)
        verdict = await stream.verdict()
        if isinstance(verdict, Rejected):
            return _refused(verdict)
        reason = FinishReason.RUNNING
        while True:
            for event in await stream.receive():
                match event:
                    case ChoiceDelta():
                        reason = event.finish_reason
                        on_piece(Piece(text=event.text, tokens=len(event.token_ids)))
                    case RequestEnded():
                        return _outcome(event, reason, params)
                    case _:
                        assert_never(event)


def _outcome(ended: RequestEnded, reason: FinishReason, params: SamplingParams) -> Outcome:
    if ended.error is not None:
        return Failed(ended.error)
    tokens = ended.usage.completion_tokens
    match reason:
        case FinishReason.STOP | FinishReason.TOOL_CALLS:
            return Finished(end=End.STOP, tokens=tokens)
        case FinishReason.LENGTH:
            return Finished(end=End.LENGTH if tokens == params.max_tokens else End.CONTEXT, tokens=tokens)
        case FinishReason.ABORT | FinishReason.ERROR | FinishReason.QUEUE_TIMEOUT:
            return Failed("the engine ended the answer")
        case FinishReason.RUNNING:
            raise InvariantViolated("a request ended without an error before its choice had")
        case _:
            assert_never(reason)


def _refused(rejected: Rejected) -> Outcome:
    if rejected.reason in _FULL:
        return ContextFull(rejected.message)
    if rejected.reason in (RejectReason.SHUTTING_DOWN, RejectReason.NOT_READY):
        return Lost(rejected.message)
    return Failed(rejected.message)
