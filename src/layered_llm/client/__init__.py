"""A client of any OpenAI-compatible server: streams over httpx, blocking, asyncio or trio."""

from layered_llm.client.chat import AsyncChatClient, ChatClient
from layered_llm.client.chunks import ChoiceDelta, StreamChunk, ToolCallDelta, Usage
from layered_llm.client.errors import (
    ApiError,
    ApiStatusError,
    ClientError,
    ConnectFailed,
    EventTooLarge,
    FirstTokenTimeout,
    IdleTimeout,
    MalformedStream,
    StreamError,
    StreamTimeout,
    StreamTruncated,
)
from layered_llm.client.http import AsyncChunkStream, ChunkStream, aiter_sse, iter_sse
from layered_llm.client.sse import ServerSentEvent, SseParser
from layered_llm.client.stream_core import StreamTimeouts

__all__ = [
    "ApiError", "ApiStatusError", "AsyncChatClient", "AsyncChunkStream", "ChatClient", "ChoiceDelta", "ChunkStream",
    "ClientError", "ConnectFailed", "EventTooLarge", "FirstTokenTimeout", "IdleTimeout", "MalformedStream",
    "ServerSentEvent", "SseParser", "StreamChunk", "StreamError", "StreamTimeout", "StreamTimeouts", "StreamTruncated",
    "ToolCallDelta", "Usage", "aiter_sse", "iter_sse",
]  # fmt: skip
