"""Request bodies of `/v1/chat/completions` and `/v1/completions` as domain values.

Must not know: HTTP, the engine, which models are served.

Rules: null is absent, unknown fields are ignored, a value of the wrong type or out of range is an error that names its
field and the limit, and what would change the output but is not supported is refused.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.messages.prompts import Prompt, Rendering
from layered_llm.domain.placement import Placement
from layered_llm.domain.sampling import SamplingParams
from layered_llm.transport.http.api_error import ApiError
from layered_llm.transport.http.openai_schema import fields as read
from layered_llm.transport.http.openai_schema.bodies import checked
from layered_llm.transport.http.openai_schema.body_fields import names_of, read_all
from layered_llm.transport.http.openai_schema.endpoint_fields import (
    CHAT,
    COMPLETIONS,
    MAX_CHOICES_PER_BODY,
    REFUSED_IN_CHAT,
    REFUSED_IN_COMPLETIONS,
    template_variables,
)
from layered_llm.transport.http.openai_schema.told import Told, told_by_chat, told_by_completion
from layered_llm.transport.http.openai_schema.unsupported import refuse

DEFAULT_COMPLETION_TOKENS: Final = 16
"""What `/v1/completions` generates when the body names no limit, as OpenAI has it."""
RANDOM_SEED: Final = -1
"""The seed by which clients of vLLM and llama.cpp say that they want none."""
WHOLE_VOCABULARY: Final = -1
"""The top_k by which clients of vLLM say that they want none."""
_ALIKE: Final = (
    "allowed_token_ids", "bad_words", "frequency_penalty", "ignore_eos", "include_stop_str_in_output", "logit_bias", "min_p",
    "min_tokens", "n", "presence_penalty", "repetition_penalty", "skip_special_tokens", "stop", "stop_token_ids",
    "temperature", "top_n_sigma", "top_p",
)  # fmt: skip
"""Fields that SamplingParams has by the same name; it has the defaults."""


@attrs.frozen(kw_only=True)
class ChatRequest:
    """A body of the chat endpoint: one prompt, a conversation or a plain text."""

    prompt: Prompt
    params: SamplingParams
    placement: Placement
    told: Told
    model: str | None
    request_id: str | None
    """What the response's id is made of, where the client chose it."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    """Running usage in every chunk, an extension of vLLM."""

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        return (self.prompt,)

    def params_of(self, prompt: int) -> SamplingParams:
        return self.params


@attrs.frozen(kw_only=True)
class CompletionRequest:
    """A body of the completions endpoint: one or more prompts, each continued `params.n` times."""

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    placement: Placement
    told: Told
    model: str | None
    request_id: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool

    def params_of(self, prompt: int) -> SamplingParams:
        return self.params


GenerationRequest = ChatRequest | CompletionRequest


def parse_chat(body: bytes) -> ChatRequest | ApiError:
    """The chat request in `body`, or why it is none."""
    return checked(body, _chat, CHAT)


def parse_completion(body: bytes) -> CompletionRequest | ApiError:
    """The completions request in `body`, or why it is none."""
    return checked(body, _completion, COMPLETIONS)


def chat_prompt(given: Mapping[str, Any]) -> Prompt:
    """Of a body that has a conversation, or a plain text in place of it. Raises ParameterError."""
    messages, prompt = given.get("messages"), given.get("prompt")
    if messages is not None and prompt is not None:
        raise ParameterError("prompt", "give either messages or prompt, not both")
    if prompt is not None:
        return _bounded(Prompt.of_text(prompt), given)
    if messages is None:
        raise ParameterError("messages", "messages is required")
    continues = given.get("continue_final_message", False)
    rendering = Rendering(
        add_generation_prompt=given.get("add_generation_prompt", not continues),
        continue_final_message=continues,
        variables=template_variables(given),
    )
    return _bounded(Prompt.of_chat(messages, rendering), given)


def _chat(fields: read.JsonObject) -> ChatRequest:
    refuse(fields, REFUSED_IN_CHAT, names_of(CHAT))
    given = read_all(CHAT, fields)
    told = told_by_chat(given)
    params = _params(given, told, default_max_tokens=None)
    return ChatRequest(prompt=chat_prompt(given), params=params, told=told, **_delivery(given))


def _completion(fields: read.JsonObject) -> CompletionRequest:
    refuse(fields, REFUSED_IN_COMPLETIONS, names_of(COMPLETIONS))
    given = read_all(COMPLETIONS, fields)
    told = told_by_completion(given)
    params = _params(given, told, default_max_tokens=DEFAULT_COMPLETION_TOKENS)
    return CompletionRequest(prompts=_prompts(given, params.n), params=params, told=told, **_delivery(given))


def _prompts(given: Mapping[str, Any], n: int) -> tuple[Prompt, ...]:
    prompts: tuple[Prompt, ...] | None = given.get("prompt")
    if prompts is None:
        raise ParameterError("prompt", "prompt is required")
    if len(prompts) * n > MAX_CHOICES_PER_BODY:
        raise ParameterError("prompt", f"{len(prompts)} prompts times n={n} are more than {MAX_CHOICES_PER_BODY} choices")
    return tuple(_bounded(prompt, given) for prompt in prompts)


def _bounded(prompt: Prompt, given: Mapping[str, Any]) -> Prompt:
    """`prompt` with what the body says of its beginning."""
    if "add_special_tokens" not in given and "truncate_prompt_tokens" not in given:
        return prompt
    return attrs.evolve(
        prompt,
        add_special_tokens=given.get("add_special_tokens"),
        keep_last_tokens=given.get("truncate_prompt_tokens"),
        keeps_beginning=given.get("truncation_side") == "right",
    )


def _params(given: Mapping[str, Any], told: Told, *, default_max_tokens: int | None) -> SamplingParams:
    """Absent fields are left to the defaults of SamplingParams."""
    top_k, seed = given.get("top_k"), given.get("seed")
    return SamplingParams(
        **{name: given[name] for name in _ALIKE if name in given},
        max_tokens=given.get("max_completion_tokens", given.get("max_tokens", default_max_tokens)),
        top_k=0 if top_k == WHOLE_VOCABULARY else top_k,
        seed=None if seed == RANDOM_SEED else seed,
        logprobs=told.logprobs,
        prompt_logprobs=told.prompt_logprobs,
        echo=told.echo,
        tells_prompt_ids=told.token_ids,
    )


def _delivery(given: Mapping[str, Any]) -> dict[str, Any]:
    """Which model is asked for, where the request stands, and how its answer is to be delivered."""
    stream, options = given.get("stream", False), given.get("stream_options")
    if options is not None and not stream:
        raise ParameterError("stream_options", "stream_options is only allowed when stream is true")
    include_usage = (options or {}).get("include_usage", False)
    return {
        "placement": Placement(cache_salt=given.get("cache_salt"), priority=given.get("priority", 0)),
        "model": given.get("model"),
        "request_id": given.get("request_id"),
        "stream": stream,
        "include_usage": include_usage,
        "continuous_usage": include_usage and (options or {}).get("continuous_usage_stats", False),
    }
