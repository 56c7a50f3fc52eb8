"""`ChatClient` and `AsyncChatClient`: the two streamed endpoints and the list of models of one server.

Must not know: how a stream is read, timeouts of a socket.

No request is repeated by itself: half of an answer may have been delivered already, and a benchmark must see each failure.
"""

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Self

import httpx

from layered_llm.client.errors import MalformedStream
from layered_llm.client.http import AsyncChunkStream, ChunkStream, aopen_stream, connect_failed, open_stream, status_error
from layered_llm.client.requests import ApiRequest, ApiServer, ChatMessages, Prompt
from layered_llm.client.stream_core import StreamTimeouts


class ChatClient:
    """A blocking client of one server; a context manager, which closes its connections at the end.

    with ChatClient("http://127.0.0.1:8000") as client:
        with client.chat_stream(model="m", messages=[{"role": "user", "content": "Hi"}]) as stream:
            for chunk in stream:
                print(chunk.text, end="")
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeouts: StreamTimeouts = StreamTimeouts(),  # noqa: B008 - a frozen value
        http: httpx.Client | None = None,
    ) -> None:
        """`http` is used, and closed, in place of a client of our own. Raises ValueError for what is no HTTP URL."""
        self._server = ApiServer.at(url, api_key)
        self._timeouts = timeouts
        self._http = http or httpx.Client()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def models(self) -> tuple[str, ...]:
        """Ids of the models that the server has. Raises ConnectFailed, ApiStatusError or MalformedStream."""
        request = self._server.models()
        try:
            response = self._http.request(request.method, request.url, headers=dict(request.headers))
        except httpx.RequestError as error:
            raise connect_failed(error) from error
        return _model_ids(response)

    def chat_stream(self, *, model: str, messages: ChatMessages, **parameters: Any) -> AbstractContextManager[ChunkStream]:
        """A chat completion, chunk by chunk; further fields of the request are given by their names in the API."""
        return self._open(self._server.chat(model=model, messages=messages, parameters=parameters))

    def completion_stream(self, *, model: str, prompt: Prompt, **parameters: Any) -> AbstractContextManager[ChunkStream]:
        """A text completion, chunk by chunk; further fields of the request are given by their names in the API."""
        return self._open(self._server.completion(model=model, prompt=prompt, parameters=parameters))

    def _open(self, request: ApiRequest) -> AbstractContextManager[ChunkStream]:
        return open_stream(self._http, request, self._timeouts)


class AsyncChatClient:
    """`ChatClient` for asyncio and trio: the same methods, `async with` and `async for`."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeouts: StreamTimeouts = StreamTimeouts(),  # noqa: B008 - a frozen value
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """`http` is used, and closed, in place of a client of our own. Raises ValueError for what is no HTTP URL."""
        self._server = ApiServer.at(url, api_key)
        self._timeouts = timeouts
        self._http = http or httpx.AsyncClient()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def models(self) -> tuple[str, ...]:
        """Ids of the models that the server has. Raises ConnectFailed, ApiStatusError or MalformedStream."""
        request = self._server.models()
        try:
            response = await self._http.request(request.method, request.url, headers=dict(request.headers))
        except httpx.RequestError as error:
            raise connect_failed(error) from error
        return _model_ids(response)

    def chat_stream(
        self, *, model: str, messages: ChatMessages, **parameters: Any
    ) -> AbstractAsyncContextManager[AsyncChunkStream]:
        """A chat completion, chunk by chunk; further fields of the request are given by their names in the API."""
        return self._open(self._server.chat(model=model, messages=messages, parameters=parameters))

    def completion_stream(
        self, *, model: str, prompt: Prompt, **parameters: Any
    ) -> AbstractAsyncContextManager[AsyncChunkStream]:
        """A text completion, chunk by chunk; further fields of the request are given by their names in the API."""
        return self._open(self._server.completion(model=model, prompt=prompt, parameters=parameters))

    def _open(self, request: ApiRequest) -> AbstractAsyncContextManager[AsyncChunkStream]:
        return aopen_stream(self._http, request, self._timeouts)


def _model_ids(response: httpx.Response) -> tuple[str, ...]:
    if not response.is_success:
        raise status_error(response, response.content)
    match _json(response):
        case {"data": [*models]}:
            return tuple(model["id"] for model in models if isinstance(model, Mapping) and isinstance(model.get("id"), str))
        case other:
            raise MalformedStream(f"not a list of models: {other!r:.200}")


def _json(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise MalformedStream(f"not JSON: {response.text[:200]}") from error
