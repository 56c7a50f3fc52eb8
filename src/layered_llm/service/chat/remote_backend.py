"""Answers by a server: this project's, or any other that is OpenAI-compatible.

Must not know: terminals, threads, engines.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final

import attrs

from layered_llm.client.chat import AsyncChatClient
from layered_llm.client.chunks import ChoiceDelta
from layered_llm.client.errors import ApiError, ApiStatusError, ClientError, StreamError
from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.chat.backend import CannotOpen, ContextFull, End, Failed, Finished, Outcome, Piece

_CHOSEN: Final = ("temperature", "top_p", "top_k", "max_tokens", "seed")


@contextlib.asynccontextmanager
async def open_remote_backend(url: str, *, api_key: str | None, model: str | None) -> "AsyncIterator[RemoteBackend]":
    """A backend for a server that answers; without `model` it is the first that the server lists. Raises CannotOpen."""
    try:
        client = AsyncChatClient(url, api_key=api_key)
    except ValueError as error:
        raise CannotOpen(f"--url {url}: {error}") from error
    async with client:
        name = model or await _first_model(client, url)
        yield RemoteBackend(client, name, f"{name} at {url}")


@attrs.frozen(eq=False)
class RemoteBackend:
    """Implements `ChatBackend`."""

    _client: AsyncChatClient
    _model: str
    title: str

    async def answer(
        self, messages: Sequence[ChatMessage], params: SamplingParams, on_piece: Callable[[Piece], None]
    ) -> Outcome:
        try:
            return await self._answer(messages, params, on_piece)
        except (ApiStatusError, StreamError) as error:
            return ContextFull(error.error.message) if _is_context_full(error.error) else Failed(str(error))
        except ClientError as error:
            return Failed(str(error))

    async def _answer(
        self, messages: Sequence[ChatMessage], params: SamplingParams, on_piece: Callable[[Piece], None]
    ) -> Outcome:
        end, tokens = End.STOP, None
        sent = [{"role": message.role, "content": message.content} for message in messages]
        async with self._client.chat_stream(model=self._model, messages=sent, **_chosen(params)) as stream:
            async for chunk in stream:
                tokens = tokens if chunk.usage is None else chunk.usage.completion_tokens
                for choice in chunk.choices:
                    end = End.LENGTH if choice.finish_reason == "length" else end
                    if choice.has_output:
                        on_piece(_piece(choice))
        return Finished(end=end, tokens=tokens)


async def _first_model(client: AsyncChatClient, url: str) -> str:
    try:
        models = await client.models()
    except ApiStatusError as error:
        hint = "; --api-key KEY sends one" if error.status == HTTPStatus.UNAUTHORIZED else ""
        raise CannotOpen(f"--url {url}: {error}{hint}") from error
    except ClientError as error:
        raise CannotOpen(f"--url {url}: {error}") from error
    if not models:
        raise CannotOpen(f"--url {url}: the server lists no model; name one with --model")
    return models[0]


def _chosen(params: SamplingParams) -> dict[str, Any]:
    """Fields of the request; what the user left open is left to the server."""
    return {name: value for name in _CHOSEN if (value := getattr(params, name)) is not None}


def _piece(choice: ChoiceDelta) -> Piece:
    return Piece(text=choice.text, reasoning=choice.reasoning, tokens=1)


def _is_context_full(error: ApiError) -> bool:
    """OpenAI and this project have a code for it, llama.cpp a type, vLLM and SGLang only words."""
    told = f"{error.code} {error.type} {error.message}".lower().replace("_", " ")
    return any(words in told for words in ("context length", "context size", "context window"))
