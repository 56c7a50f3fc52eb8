"""Sends a planned request to an OpenAI-compatible server and times its stream.

Must not know: when requests are due, statistics.
"""

import enum
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import attrs
import trio

from layered_llm.client.bench.load import PlannedRequest
from layered_llm.client.bench.prompts import ChatPrompt, TextPrompt
from layered_llm.client.bench.records import Failure, RequestRecord, Tally
from layered_llm.client.chat import AsyncChatClient
from layered_llm.client.chunks import Usage
from layered_llm.client.errors import (
    ApiStatusError,
    ClientError,
    ConnectFailed,
    FirstTokenTimeout,
    IdleTimeout,
    MalformedStream,
    StreamError,
    StreamTruncated,
)
from layered_llm.client.http import AsyncChunkStream

_FAILURE_KINDS: Final = (
    (ConnectFailed, "no connection"),
    (FirstTokenTimeout, "first token timeout"),
    (IdleTimeout, "idle timeout"),
    (StreamError, "error in the stream"),
    (StreamTruncated, "truncated stream"),
    (MalformedStream, "malformed stream"),
)


@enum.unique
class Endpoint(enum.Enum):
    """Which of the two streamed endpoints is asked."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@attrs.frozen(kw_only=True)
class StreamSender:
    """Asks `model` at one endpoint, with the same parameters each time."""

    client: AsyncChatClient
    endpoint: Endpoint
    model: str
    parameters: Mapping[str, Any]

    async def send(self, request: PlannedRequest, tally: Tally) -> RequestRecord:
        """Reports each chunk with output to `tally`. Raises ValueError for a conversation at the completions endpoint."""
        sent_s = trio.current_time()
        chunk_times_s: list[float] = []
        usage: Usage | None = None
        failure: Failure | None = None
        try:
            async with self._open(request) as stream:
                async for chunk in stream:
                    usage = chunk.usage or usage
                    if chunk.has_output:
                        chunk_times_s.append(trio.current_time())
                        tally.chunk_arrived()
        except ClientError as error:
            failure = failure_of(error)
        return RequestRecord(
            index=request.index,
            due_s=request.due_s,
            sent_s=sent_s,
            chunk_times_s=tuple(chunk_times_s),
            ended_s=trio.current_time(),
            usage=usage,
            failure=failure,
        )

    def _open(self, request: PlannedRequest) -> AbstractAsyncContextManager[AsyncChunkStream]:
        match self.endpoint, request.prompt:
            case Endpoint.CHAT, TextPrompt(text=text):
                messages = [{"role": "user", "content": text}]
                return self.client.chat_stream(model=self.model, messages=messages, **self.parameters)
            case Endpoint.CHAT, ChatPrompt(messages=messages):
                return self.client.chat_stream(model=self.model, messages=messages, **self.parameters)
            case Endpoint.COMPLETIONS, TextPrompt(text=text):
                return self.client.completion_stream(model=self.model, prompt=text, **self.parameters)
            case _:
                raise ValueError("a conversation needs the chat endpoint")


def failure_of(error: ClientError) -> Failure:
    """What is counted for `error`, and what it said."""
    if isinstance(error, ApiStatusError):
        return Failure(kind=f"HTTP {error.status}", message=error.error.message)
    kind = next((kind for cls, kind in _FAILURE_KINDS if isinstance(error, cls)), type(error).__name__)
    return Failure(kind=kind, message=str(error))
