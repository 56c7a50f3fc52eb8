"""Answers of a fake server: bodies made of pieces with pauses between them, and a real one on a loopback socket."""

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import httpx
import trio

DONE = b"data: [DONE]\n\n"
Piece = bytes | float | Exception
"""Bytes to send, seconds to wait (trio only), or the way in which the connection breaks."""


def event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def chat_chunk(text: str = "", *, index: int = 0, finish: str | None = None, **delta: object) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": index, "delta": {"content": text, **delta}, "logprobs": None, "finish_reason": finish}],
    }


def usage_chunk(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return {"id": "chatcmpl-1", "model": "m", "choices": [], "usage": usage}


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, bytes):
                yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, bytes):
                yield piece
            else:
                await trio.sleep(piece)

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


def stream_response(*pieces: Piece, content_type: str = "text/event-stream; charset=utf-8") -> httpx.Response:
    return httpx.Response(200, headers={"content-type": content_type}, stream=Body(pieces))


Handler = Callable[[bytes, trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def http_server(handler: Handler) -> AsyncIterator[str]:
    """A server on a loopback port, one `handler(request, stream)` per request; gives its URL."""

    async def serve(stream: trio.SocketStream) -> None:
        # A client may leave while we are sending to it.
        with suppress(trio.BrokenResourceError):
            async with stream:
                while request := await _read_request(stream):
                    await handler(request, stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        yield f"http://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


async def _read_request(stream: trio.SocketStream) -> bytes:
    request = b""
    while b"\r\n\r\n" not in request:
        data = await stream.receive_some()
        if not data:
            return b""
        request += data
    head, _, body = request.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < int(lengths[0] if lengths else 0):
        body += await stream.receive_some()
    return head + b"\r\n\r\n" + body


async def send_head(stream: trio.SocketStream, content_type: str = "text/event-stream") -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    await stream.send_all(head.encode())


async def send_piece(stream: trio.SocketStream, data: bytes) -> None:
    """One HTTP chunk; an empty one ends the body."""
    await stream.send_all(b"%x\r\n%s\r\n" % (len(data), data))


async def send_json(stream: trio.SocketStream, value: object) -> None:
    await send_head(stream, "application/json")
    await send_piece(stream, json.dumps(value).encode())
    await send_piece(stream, b"")


@contextmanager
def http_server_in_thread(handler: Handler) -> Iterator[str]:
    """`http_server` for a program that runs its own event loop in the main thread."""
    ready: SimpleQueue[tuple[str, trio.lowlevel.TrioToken, trio.CancelScope]] = SimpleQueue()

    async def serve() -> None:
        with trio.CancelScope() as scope:
            async with http_server(handler) as url:
                ready.put((url, trio.lowlevel.current_trio_token(), scope))
                await trio.Event().wait()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    url, token, scope = ready.get()
    try:
        yield url
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join()
