"""Request bodies of `/v1/chat/completions` and `/v1/completions` as domain values.

Must not know: HTTP, the engine, which models are served.

Rules: null is absent, unknown fields are ignored, a value of the wrong type or out of range is an error that names its
field and the limit, and what would change the output but is not supported is refused.
"""

import logging
from typing import Any, Final

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.placement import Placement
from layered_llm.domain.sampling import MAX_BIAS, MAX_CHOICES, SEED_LIMIT, TOKENS_LIMIT, SamplingParams
from layered_llm.transport.http.api_error import ApiError, bad_parameter, bad_request
from layered_llm.transport.http.openai_schema import fields as read
from layered_llm.transport.http.openai_schema.messages import parse_messages
from layered_llm.transport.http.openai_schema.told import Told, told_by_chat, told_by_completion
from layered_llm.transport.http.openai_schema.unsupported import (
    refuse_unsupported_chat_fields,
    refuse_unsupported_completion_fields,
)

MAX_CHOICES_PER_BODY: Final = MAX_CHOICES
"""Most prompts times `n` of one body."""
DEFAULT_COMPLETION_TOKENS: Final = 16
"""What `/v1/completions` generates when the body names no limit, as OpenAI has it."""
RANDOM_SEED: Final = -1
"""The seed by which clients of vLLM and llama.cpp say that they want none."""
_MOST_DIGITS: Final = 10
"""Of a token id, which is a signed 32-bit integer."""

_KNOWN: Final = frozenset(
    {
        "cache_salt", "echo", "frequency_penalty", "ignore_eos", "include_stop_str_in_output", "logit_bias", "logprobs",
        "max_completion_tokens", "max_tokens", "messages", "min_p", "min_tokens", "model", "n", "presence_penalty",
        "priority", "prompt", "prompt_logprobs", "repetition_penalty", "seed", "skip_special_tokens", "stop",
        "stop_token_ids", "stream", "stream_options", "temperature", "top_k", "top_logprobs", "top_p",
    }
)  # fmt: skip

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class ChatRequest:
    """A body of the chat endpoint: one prompt, a conversation or a plain text."""

    prompt: Prompt
    params: SamplingParams
    placement: Placement
    told: Told
    model: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    """Running usage in every chunk, an extension of vLLM."""

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        return (self.prompt,)


@attrs.frozen(kw_only=True)
class CompletionRequest:
    """A body of the completions endpoint: one or more prompts, each continued `params.n` times."""

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    placement: Placement
    told: Told
    model: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool


GenerationRequest = ChatRequest | CompletionRequest


def parse_chat(body: bytes) -> ChatRequest | ApiError:
    """The chat request in `body`, or why it is none."""
    try:
        fields = read.decode_object(body)
        _log_ignored(fields)
        refuse_unsupported_chat_fields(fields)
        told = told_by_chat(fields)
        params = _params(fields, told, default_max_tokens=None)
        return ChatRequest(prompt=_chat_prompt(fields), params=params, told=told, **_delivery(fields))
    except read.MalformedBody as error:
        return bad_request(str(error), code="invalid_json")
    except ParameterError as error:
        return bad_parameter(error)


def parse_completion(body: bytes) -> CompletionRequest | ApiError:
    """The completions request in `body`, or why it is none."""
    try:
        fields = read.decode_object(body)
        _log_ignored(fields)
        refuse_unsupported_completion_fields(fields)
        told = told_by_completion(fields)
        params = _params(fields, told, default_max_tokens=DEFAULT_COMPLETION_TOKENS)
        prompts = _prompts(fields.get("prompt"))
        if len(prompts) * params.n > MAX_CHOICES_PER_BODY:
            message = f"{len(prompts)} prompts times n={params.n} are more than {MAX_CHOICES_PER_BODY} choices"
            raise ParameterError("prompt", message)
        return CompletionRequest(prompts=prompts, params=params, told=told, **_delivery(fields))
    except read.MalformedBody as error:
        return bad_request(str(error), code="invalid_json")
    except ParameterError as error:
        return bad_parameter(error)


def _log_ignored(fields: read.JsonObject) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("fields without effect: %s", sorted(set(fields) - _KNOWN))


def _chat_prompt(fields: read.JsonObject) -> Prompt:
    messages, prompt = fields.get("messages"), fields.get("prompt")
    if messages is not None and prompt is not None:
        raise ParameterError("prompt", "give either messages or prompt, not both")
    if prompt is not None:
        return Prompt.of_text(read.text("prompt", prompt))
    return Prompt.of_chat(parse_messages(messages))


def _prompts(value: object) -> tuple[Prompt, ...]:
    """The four shapes: a text, texts, token ids, lists of token ids."""
    if isinstance(value, str):
        return (Prompt.of_text(read.text("prompt", value)),)
    if not isinstance(value, list):
        raise read.wrong_type("prompt", "a string, or a list of strings, token ids or lists of token ids", value)
    if not value:
        raise ParameterError("prompt", "prompt must not be empty")
    match value[0]:
        case str():
            return tuple(map(Prompt.of_text, read.texts("prompt", value)))
        case list():
            return tuple(_token_prompt(f"prompt[{place}]", ids) for place, ids in enumerate(value))
        case _:
            return (_token_prompt("prompt", value),)


def _token_prompt(param: str, ids: object) -> Prompt:
    if not isinstance(ids, list):
        raise read.wrong_type(param, "a list of token ids", ids)
    if not ids:
        raise ParameterError(param, f"{param} must not be empty")
    return Prompt.of_token_ids(read.token_ids(param, ids, TOKENS_LIMIT))


def _params(fields: read.JsonObject, told: Told, *, default_max_tokens: int | None) -> SamplingParams:
    """Absent fields are left to the defaults of SamplingParams, which checks the ranges that are not checked here."""
    top_k = read.optional_int(fields, "top_k", -1, TOKENS_LIMIT - 1)
    seed = read.optional_int(fields, "seed", -SEED_LIMIT, SEED_LIMIT - 1)
    given: dict[str, Any] = {
        "max_tokens": _max_tokens(fields, default_max_tokens, least=0 if told.tells_prompt else 1),
        "min_tokens": read.optional_int(fields, "min_tokens", 0, TOKENS_LIMIT - 1),
        "n": read.optional_int(fields, "n", 1, MAX_CHOICES),
        "temperature": read.optional_number(fields, "temperature"),
        "top_p": read.optional_number(fields, "top_p"),
        "top_k": 0 if top_k == -1 else top_k,
        "min_p": read.optional_number(fields, "min_p"),
        "repetition_penalty": read.optional_number(fields, "repetition_penalty"),
        "presence_penalty": read.optional_number(fields, "presence_penalty"),
        "frequency_penalty": read.optional_number(fields, "frequency_penalty"),
        "logit_bias": _logit_bias(read.optional_object(fields, "logit_bias")),
        "logprobs": told.logprobs,
        "prompt_logprobs": told.prompt_logprobs,
        "echo": told.echo,
        "seed": None if seed == RANDOM_SEED else seed,
        "stop": _stop(fields.get("stop")),
        "stop_token_ids": _stop_token_ids(fields.get("stop_token_ids")),
        "ignore_eos": read.optional_bool(fields, "ignore_eos"),
        "include_stop_str_in_output": read.optional_bool(fields, "include_stop_str_in_output"),
        "skip_special_tokens": read.optional_bool(fields, "skip_special_tokens"),
    }
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def _max_tokens(fields: read.JsonObject, default: int | None, *, least: int) -> int | None:
    newer = read.optional_int(fields, "max_completion_tokens", least, TOKENS_LIMIT - 1)
    older = read.optional_int(fields, "max_tokens", least, TOKENS_LIMIT - 1)
    if newer is not None:
        return newer
    return default if older is None else older


def _stop(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return (read.text("stop", value),)
    if isinstance(value, list):
        return read.texts("stop", value)
    raise read.wrong_type("stop", "a string or a list of strings", value)


def _stop_token_ids(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, list):
        return read.token_ids("stop_token_ids", value, TOKENS_LIMIT)
    raise read.wrong_type("stop_token_ids", "a list of token ids", value)


def _logit_bias(value: read.JsonObject | None) -> tuple[tuple[int, float], ...] | None:
    """Biases beyond the range count as its limits, as in vLLM."""
    if value is None:
        return None
    biases: list[tuple[int, float]] = []
    for key, item in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= _MOST_DIGITS):
            raise ParameterError("logit_bias", f"the keys of logit_bias must be token ids, got {read.shown(key)}")
        bias = read.optional_number({"logit_bias": item}, "logit_bias")
        if bias is None:
            raise read.wrong_type("logit_bias", "an object of numbers", item)
        biases.append((int(key), min(max(bias, -MAX_BIAS), MAX_BIAS)))
    return tuple(biases)


def _placement(fields: read.JsonObject) -> Placement:
    salt = read.optional_text(fields, "cache_salt")
    priority = read.optional_int(fields, "priority", -SEED_LIMIT, SEED_LIMIT - 1)
    return Placement(cache_salt=salt, priority=priority or 0)


def _delivery(fields: read.JsonObject) -> dict[str, Any]:
    """Which model is asked for, and how its answer is to be delivered."""
    stream = read.optional_bool(fields, "stream") or False
    options = read.optional_object(fields, "stream_options")
    if options is not None and not stream:
        raise ParameterError("stream_options", "stream_options is only allowed when stream is true")
    include_usage = read.optional_bool(options or {}, "include_usage") or False
    continuous = read.optional_bool(options or {}, "continuous_usage_stats") or False
    return {
        "placement": _placement(fields),
        "model": read.optional_text(fields, "model"),
        "stream": stream,
        "include_usage": include_usage,
        "continuous_usage": include_usage and continuous,
    }
