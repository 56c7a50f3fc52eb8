"""One open request as an asynchronous iterator of deltas.

Must not know: who opened it, how it is aborted.
"""

from collections import deque
from collections.abc import Callable
from typing import Self

import attrs
import trio

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.messages.api_text import Accepted
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.domain.stream import RequestEnded, StreamEvent, Usage
from layered_llm.service.engine_client.request_stream import RequestStream
from layered_llm.service.library.errors import EngineClosed, RequestFailed
from layered_llm.service.library.results import Delta, FinishWord, to_delta


@attrs.define(eq=False)
class CompletionStream:
    """`async for delta in stream`, by one task, inside the block that opened it.

    Iterating raises EngineLost when the engine dies, RequestFailed when it gives the request up, EngineClosed after the block
    of the stream or of its engine.
    A cancelled step takes nothing: what it would have brought comes with the next one.
    """

    _stream: RequestStream
    _verdict: Accepted
    _check_engine: Callable[[], None]
    """Raises EngineClosed."""
    _lost: Callable[[], Exception]
    """What is raised where the engine has the request no more."""
    _waiting: deque[StreamEvent] = attrs.field(factory=deque)
    _finish_reasons: dict[int, FinishWord] = attrs.field(factory=dict)
    _usage: Usage | None = None
    _is_read: bool = False
    _is_left: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Known from the start."""
        return self._verdict.prompt_tokens

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """Known from the start, where `SamplingParams.tells_prompt_ids` asks for them; else none."""
        return tuple(unpack_i32(self._verdict.prompt_ids))

    @property
    def usage(self) -> Usage | None:
        """Of all choices; None before the iteration has ended."""
        return self._usage

    @property
    def finish_reason(self) -> FinishWord | None:
        """Of the first choice; None while it goes on."""
        return self._finish_reasons.get(0)

    @property
    def finish_reasons(self) -> dict[int, FinishWord]:
        """Of the choices that have ended, by their index."""
        return dict(self._finish_reasons)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._usage is not None:
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        event = await self._next_event()
        if isinstance(event, RequestEnded):
            self._usage = event.usage
            raise StopAsyncIteration if event.error is None else RequestFailed(event.error)
        delta = to_delta(event)
        if delta.finish_reason is not None:
            self._finish_reasons[delta.choice] = delta.finish_reason
        return delta

    def leave(self) -> None:
        """The block is over."""
        self._is_left = True

    async def _next_event(self) -> StreamEvent:
        if self._is_left:
            raise EngineClosed("the stream is read after its block was left")
        self._check_engine()
        if self._is_read:
            raise trio.BusyResourceError("another task reads the stream")
        self._is_read = True
        try:
            if self._waiting:
                await trio.lowlevel.checkpoint()
            else:
                self._waiting.extend(await self._stream.receive())
        except EngineLost:
            raise self._lost() from None
        finally:
            self._is_read = False
        return self._waiting.popleft()
