"""Response bodies, stream chunks, and the list of models, in OpenAI's words.

Must not know: HTTP, events, in which order chunks are sent.

A shape is the difference between the two endpoints. Every key that OpenAI's types require is always present; `stop_reason`
(vLLM) is on top of them, and what a body asks to be told.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, assert_never

import attrs

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.stream import Usage
from layered_llm.transport.http.exchange.public_ids import CHAT_PREFIX, COMPLETION_PREFIX
from layered_llm.transport.http.openai.schema.logprobs import ChatLogprobs, CompletionLogprobs, LogprobWriter, Naming

Json = dict[str, Any]
StopReason = str | int | None


@attrs.frozen(kw_only=True)
class ResponseHead:
    """What all chunks of one response share."""

    id: str
    created_s: int
    model: str
    fingerprint: str
    """Of the server's version and of all that its outputs depend on."""


class Shape(Protocol):
    """How one endpoint words a choice, whole or in pieces."""

    id_prefix: str
    response_object: str
    chunk_object: str
    has_prompt_by_choice: bool
    """Whether what is told of a prompt, an extension of vLLM, stands in each choice, and not beside the choices."""

    def opening(self, index: int) -> Json | None:
        """The choice of the chunk that comes before a choice's first text, if there is one."""

    def piece(self, index: int, text: str, logprobs: Json | None) -> Json:
        """The choice of a chunk with more text, or with more tokens that have brought none yet."""

    def ending(self, index: int, finish_reason: str, stop_reason: StopReason) -> Json:
        """The choice of the last chunk of a choice."""

    def whole(self, index: int, text: str, logprobs: Json | None, finish_reason: str, stop_reason: StopReason) -> Json:
        """The choice of a response that is not streamed."""

    def start_logprobs(self, named: Naming) -> LogprobWriter:
        """What words the log probabilities of one choice, for `piece` or `whole`."""


class ChatShape:
    """`/v1/chat/completions`."""

    id_prefix: str = CHAT_PREFIX
    response_object: str = "chat.completion"
    chunk_object: str = "chat.completion.chunk"
    has_prompt_by_choice: bool = False

    def opening(self, index: int) -> Json | None:
        return _choice(index, None, delta={"role": "assistant", "content": ""})

    def piece(self, index: int, text: str, logprobs: Json | None) -> Json:
        return _choice(index, None, logprobs, delta={"content": text})

    def ending(self, index: int, finish_reason: str, stop_reason: StopReason) -> Json:
        return {**_choice(index, finish_reason, delta={}), "stop_reason": stop_reason}

    def whole(self, index: int, text: str, logprobs: Json | None, finish_reason: str, stop_reason: StopReason) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {**_choice(index, finish_reason, logprobs, message=message), "stop_reason": stop_reason}

    def start_logprobs(self, named: Naming) -> LogprobWriter:
        return ChatLogprobs(named)


class CompletionShape:
    """`/v1/completions`."""

    id_prefix: str = COMPLETION_PREFIX
    response_object: str = "text_completion"
    chunk_object: str = "text_completion"
    has_prompt_by_choice: bool = True

    def opening(self, index: int) -> Json | None:
        return None

    def piece(self, index: int, text: str, logprobs: Json | None) -> Json:
        return _choice(index, None, logprobs, text=text)

    def ending(self, index: int, finish_reason: str, stop_reason: StopReason) -> Json:
        return self.whole(index, "", None, finish_reason, stop_reason)

    def whole(self, index: int, text: str, logprobs: Json | None, finish_reason: str, stop_reason: StopReason) -> Json:
        return {**_choice(index, finish_reason, logprobs, text=text), "stop_reason": stop_reason}

    def start_logprobs(self, named: Naming) -> LogprobWriter:
        return CompletionLogprobs(named)


CHAT: Final[Shape] = ChatShape()
COMPLETIONS: Final[Shape] = CompletionShape()


def _choice(index: int, finish_reason: str | None, logprobs: Json | None = None, **content: object) -> Json:
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish_reason}


def finish_reason_name(reason: FinishReason) -> str | None:
    """The word for a choice that ended by itself; None where OpenAI has none, which is for failures and running choices."""
    match reason:
        case FinishReason.STOP:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.TOOL_CALLS:
            return "tool_calls"
        case FinishReason.RUNNING | FinishReason.ABORT | FinishReason.ERROR | FinishReason.QUEUE_TIMEOUT:
            return None
        case _ as unreachable:
            assert_never(unreachable)


def usage_object(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def response_object(shape: Shape, head: ResponseHead, choices: Sequence[Json], usage: Usage) -> Json:
    return {**envelope(head, shape.response_object, choices), "usage": usage_object(usage)}


def with_prompts(shape: Shape, body: Json, name: str, prompts: Sequence[object]) -> Json:
    """A response or chunk that tells by `name` something of the prompt of each of its choices."""
    if not shape.has_prompt_by_choice:
        return {**body, name: prompts[0]}
    return {**body, "choices": [{**choice, name: one} for choice, one in zip(body["choices"], prompts, strict=True)]}


def with_prompt_ids(shape: Shape, body: Json, prompts: Sequence[Sequence[int]]) -> Json:
    """A response or chunk with the ids of the prompt of each choice."""
    return with_prompts(shape, body, "prompt_token_ids", [list(prompt) for prompt in prompts])


def with_token_ids(choice: Json, token_ids: Sequence[int]) -> Json:
    """A choice, whole or in pieces, with the ids of its tokens."""
    return {**choice, "token_ids": list(token_ids)}


def envelope(head: ResponseHead, kind: str, choices: Sequence[Json]) -> Json:
    """A response or chunk with these choices."""
    return {
        "id": head.id,
        "object": kind,
        "created": head.created_s,
        "model": head.model,
        "choices": choices,
        "system_fingerprint": head.fingerprint,
    }


def model_object(name: str, created_s: int, context_tokens: int | None) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "layered_llm",
        "root": name,
        "parent": None,
        "max_model_len": context_tokens,
    }


def model_list(models: Sequence[Mapping[str, Any]]) -> Json:
    return {"object": "list", "data": models}
