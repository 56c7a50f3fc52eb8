"""Event streams and completion streams over httpx: sync, asyncio and trio (anyio serves both).

Must not know: JSON names of a request, what a chunk holds.

Invariant: leaving the `with` block of a stream closes its response, which is how a server learns that nobody listens any more.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import Final, Self

import anyio
import attrs
import httpx

from layered_llm.client.chunks import StreamChunk
from layered_llm.client.errors import (
    ApiStatusError,
    ClientError,
    ConnectFailed,
    MalformedStream,
    StreamTruncated,
    read_error_body,
)
from layered_llm.client.requests import ApiRequest
from layered_llm.client.sse import ServerSentEvent, SseParser
from layered_llm.client.stream_core import StreamCore, StreamTimeouts

_CONNECT_TIMEOUT_S: Final = 10.0
_DRAIN_TIMEOUT_S: Final = 0.5
"""For the end of the body after `[DONE]`, which is usually in the same packet."""


def iter_sse(response: httpx.Response) -> Iterator[ServerSentEvent]:
    """The events of an open response, whatever their data mean. Raises EventTooLarge, and httpx's errors as they are."""
    parser = SseParser(deliver_unfinished=True)
    for data in response.iter_bytes():
        yield from parser.feed(data)
    yield from parser.close()


async def aiter_sse(response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
    """`iter_sse` of a response of `httpx.AsyncClient`. Leave it early only under `contextlib.aclosing`."""
    parser = SseParser(deliver_unfinished=True)
    body = response.aiter_bytes()
    try:
        async for data in body:
            for event in parser.feed(data):
                yield event
        for event in parser.close():
            yield event
    finally:
        await _unwind(body)


@attrs.define
class ChunkStream:
    """Iterator over the chunks of one stream.

    `__next__` raises ClientError's subclasses. A blocking socket has one time limit for the whole stream: silence is noticed
    after the longer of the two timeouts, a stream that sends only keep-alives after the right one. For want of a time limit
    the end of the body after `[DONE]` is not read, so that the next request needs a new connection.
    """

    response: httpx.Response
    _core: StreamCore
    _bytes: Iterator[bytes]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamChunk:
        while (chunk := self._core.next_chunk()) is None:
            if self._core.is_over:
                raise StopIteration
            self._receive()
        return chunk

    def _receive(self) -> None:
        began_s = monotonic()
        with _translated(self._core, has_answer=True):
            data = next(self._bytes, None)
        if data is None:
            self._core.end()
        else:
            self._core.receive(data, waited_s=monotonic() - began_s)


@attrs.define
class AsyncChunkStream:
    """Asynchronous iterator over the chunks of one stream. `__anext__` raises ClientError's subclasses."""

    response: httpx.Response
    _core: StreamCore
    _bytes: AsyncIterator[bytes]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamChunk:
        while (chunk := self._core.next_chunk()) is None:
            if self._core.is_over:
                await self._drain()
                raise StopAsyncIteration
            await self._receive()
        return chunk

    async def _drain(self) -> None:
        # A body that was read to its end leaves the connection to the next request.
        with suppress(httpx.RequestError), anyio.move_on_after(_DRAIN_TIMEOUT_S):
            while await anext(self._bytes, None) is not None:
                pass

    async def _receive(self) -> None:
        began_s = anyio.current_time()
        with _translated(self._core, has_answer=True), anyio.fail_after(self._core.budget_s):
            data = await anext(self._bytes, None)
        if data is None:
            self._core.end()
        else:
            self._core.receive(data, waited_s=anyio.current_time() - began_s)


@contextmanager
def open_stream(http: httpx.Client, request: ApiRequest, timeouts: StreamTimeouts) -> Iterator[ChunkStream]:
    """Sends `request` and gives its stream. Raises ConnectFailed, ApiStatusError, MalformedStream or FirstTokenTimeout."""
    core = StreamCore(timeouts)
    began_s = monotonic()
    message = _message(http, request, read_timeout_s=_longer(timeouts))
    with _translated(core, has_answer=False):
        response = http.send(message, stream=True)
    try:
        with _translated(core, has_answer=False):
            if not response.is_success:
                raise status_error(response, response.read())
        _check_is_stream(response)
        core.waited(monotonic() - began_s)
        yield ChunkStream(response, core, response.iter_bytes())
    finally:
        response.close()


@asynccontextmanager
async def aopen_stream(
    http: httpx.AsyncClient, request: ApiRequest, timeouts: StreamTimeouts
) -> AsyncIterator[AsyncChunkStream]:
    """`open_stream` for asyncio and trio."""
    core = StreamCore(timeouts)
    began_s = anyio.current_time()
    message = _message(http, request, read_timeout_s=None)
    with _translated(core, has_answer=False), anyio.fail_after(core.budget_s):
        response = await http.send(message, stream=True)
    try:
        with _translated(core, has_answer=False), anyio.fail_after(core.budget_s):
            if not response.is_success:
                raise status_error(response, await response.aread())
        _check_is_stream(response)
        core.waited(anyio.current_time() - began_s)
        body = response.aiter_bytes()
        try:
            yield AsyncChunkStream(response, core, body)
        finally:
            await _unwind(body)
    finally:
        await response.aclose()


async def _unwind(body: AsyncIterator[bytes]) -> None:
    # httpx nests generators that `aclose` of the outermost leaves to the garbage collector, of which trio warns. A read in a
    # cancelled scope ends all of them from within.
    with suppress(httpx.RequestError), anyio.CancelScope() as scope:
        scope.cancel()
        while await anext(body, None) is not None:
            pass


def status_error(response: httpx.Response, body: bytes) -> ApiStatusError:
    """The error that a response other than 2xx, with this body, stands for."""
    return ApiStatusError(
        response.status_code,
        read_error_body(body),
        retry_after_s=_retry_after_s(response.headers),
        request_id=response.headers.get("x-request-id"),
    )


def connect_failed(error: httpx.RequestError) -> ConnectFailed:
    """What httpx says about a request that got no answer."""
    return ConnectFailed(_said(error))


def _said(error: BaseException) -> str:
    """What the error says, or the nearest of its causes that says anything: httpx keeps no word of a failed TLS handshake."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__  # httpcore names no cause
    return type(error).__name__


@contextmanager
def _translated(core: StreamCore, *, has_answer: bool) -> Iterator[None]:
    """Failures of the connection, as errors of this package."""
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise connect_failed(error) from error
    except (httpx.TimeoutException, TimeoutError) as error:
        raise core.timed_out() from error
    except httpx.RequestError as error:
        raise _broken(error, has_answer=has_answer) from error


def _broken(error: httpx.RequestError, *, has_answer: bool) -> ClientError:
    if has_answer:
        return StreamTruncated(f"the connection broke: {_said(error)}")
    return connect_failed(error)


def _message(http: httpx.Client | httpx.AsyncClient, request: ApiRequest, *, read_timeout_s: float | None) -> httpx.Request:
    timeout = httpx.Timeout(read_timeout_s, connect=_CONNECT_TIMEOUT_S, pool=None)
    return http.build_request(request.method, request.url, headers=dict(request.headers), json=request.body, timeout=timeout)


def _longer(timeouts: StreamTimeouts) -> float | None:
    if timeouts.first_token_s is None or timeouts.idle_s is None:
        return None
    return max(timeouts.first_token_s, timeouts.idle_s)


def _check_is_stream(response: httpx.Response) -> None:
    content_type = response.headers.get("content-type", "text/event-stream")
    if content_type.partition(";")[0].strip().lower() != "text/event-stream":
        raise MalformedStream(f"expected text/event-stream, got {content_type}")


def _retry_after_s(headers: httpx.Headers) -> float | None:
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if value.isascii() and value.replace(".", "", 1).isdigit():
            return float(value) * unit_s
    return None
