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
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.openai.schema import fields as read
from layered_llm.transport.http.openai.schema.bodies import checked
from layered_llm.transport.http.openai.schema.endpoint_fields import (
    CHAT,
    COMPLETIONS,
    MAX_CHOICES_PER_BODY,
    REFUSED_IN_CHAT,
    REFUSED_IN_COMPLETIONS,
)

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
class Told:
    """The numbers are of the likeliest tokens; None tells no log probabilities at all."""

    logprobs: int | None
    prompt_logprobs: int | None
    has_prompt_field: bool
    """Whether `prompt_logprobs` was asked for, and not only implied by an echo."""
    echo: bool
    echoes_logprobs: bool = False
    """The output's log probabilities begin with the prompt's."""
    token_ids: bool
    """The ids of the prompt's and the output's tokens."""
    tokens_as_ids: bool
    """Log probabilities name tokens by their ids."""


@attrs.frozen(kw_only=True)
class GenerationRequest:
    """A body of either endpoint: one or more prompts, of a chat always one, each continued `params.n` times."""

    prompts: tuple[Prompt, ...]
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

    def params_of(self, prompt: int) -> SamplingParams:
        return self.params


def parse_chat(body: bytes) -> GenerationRequest | ApiError:
    """The chat request in `body`, or why it is none."""
    return checked(body, _chat, CHAT, REFUSED_IN_CHAT)


def parse_completion(body: bytes) -> GenerationRequest | ApiError:
    """The completions request in `body`, or why it is none."""
    return checked(body, _completion, COMPLETIONS, REFUSED_IN_COMPLETIONS)


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
        variables=_template_variables(given),
    )
    return _bounded(Prompt.of_chat(messages, rendering), given)


def _chat(given: read.JsonObject, _written: read.JsonObject) -> GenerationRequest:
    told = _told_by_chat(given)
    params = _params(given, told, default_max_tokens=None)
    return _request(given, told, params, (chat_prompt(given),))


def _completion(given: read.JsonObject, _written: read.JsonObject) -> GenerationRequest:
    told = _told_by_completion(given)
    params = _params(given, told, default_max_tokens=DEFAULT_COMPLETION_TOKENS)
    return _request(given, told, params, _prompts(given, params.n))


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


def _request(given: Mapping[str, Any], told: Told, params: SamplingParams, prompts: tuple[Prompt, ...]) -> GenerationRequest:
    """With which model is asked for, where the request stands, and how its answer is to be delivered."""
    stream, options = given.get("stream", False), given.get("stream_options")
    if options is not None and not stream:
        raise ParameterError("stream_options", "stream_options is only allowed when stream is true")
    include_usage = (options or {}).get("include_usage", False)
    return GenerationRequest(
        prompts=prompts,
        params=params,
        told=told,
        placement=Placement(cache_salt=given.get("cache_salt"), priority=given.get("priority", 0)),
        model=given.get("model"),
        request_id=given.get("request_id"),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and (options or {}).get("continuous_usage_stats", False),
    )


def _told_by_chat(given: Mapping[str, Any]) -> Told:
    """Raises ParameterError."""
    is_asked, top = given.get("logprobs", False), given.get("top_logprobs", 0)
    if top and not is_asked:
        raise ParameterError("top_logprobs", "top_logprobs is only allowed when logprobs is true")
    return Told(logprobs=top if is_asked else None, **_told_of_both(given))


def _told_by_completion(given: Mapping[str, Any]) -> Told:
    """An echo tells of the prompt what is told of the output, where nothing else is said, as in vLLM. Raises ParameterError."""
    logprobs = given.get("logprobs")
    told = Told(logprobs=logprobs, **_told_of_both(given))
    if not told.echo or logprobs is None:
        return told
    return attrs.evolve(
        told, prompt_logprobs=logprobs if told.prompt_logprobs is None else told.prompt_logprobs, echoes_logprobs=True
    )


def _told_of_both(given: Mapping[str, Any]) -> dict[str, Any]:
    prompt = given.get("prompt_logprobs")
    if prompt is not None and given.get("stream"):
        raise ParameterError("prompt_logprobs", "prompt_logprobs is not allowed when stream is true")
    return {
        "prompt_logprobs": prompt,
        "has_prompt_field": prompt is not None,
        "echo": given.get("echo", False),
        "token_ids": given.get("return_token_ids", False),
        "tokens_as_ids": given.get("return_tokens_as_token_ids", False),
    }


def _template_variables(given: Mapping[str, Any]) -> str | None:
    """What a template is given by name, as one JSON object. Raises ParameterError."""
    variables = dict(given.get("chat_template_kwargs") or {})
    param = "chat_template_kwargs"
    if "documents" in given:
        variables["documents"], param = given["documents"], "documents"
    return read.encode_text(param, variables) if variables else None
