"""The request bodies as JSON Schemas, with the ranges of the values that the parsers build.

Must not know: how a body is parsed.

What a schema cannot say (a conversation or a prompt but not both, one sum that must not be exceeded) is in the descriptions.
Unknown members are ignored. `tests/transport/http/test_http_openapi.py` compares these tables with what the parsers take.
"""

from collections.abc import Mapping
from typing import Any, Final

from layered_llm.domain.placement import MAX_CACHE_SALT_CHARS
from layered_llm.domain.sampling import (
    MAX_BIASED_TOKENS,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TEMPERATURE,
    SEED_LIMIT,
    TOKENS_LIMIT,
)
from layered_llm.transport.http.openai_schema.messages import ROLES
from layered_llm.transport.http.openai_schema.unsupported import OF_CHAT, OF_COMPLETIONS
from layered_llm.transport.http.openapi.schema import (
    Json,
    array,
    boolean,
    described,
    either,
    integer,
    nullable,
    number,
    one_of,
    record,
    string,
)

TOKENS: Final = integer(0, TOKENS_LIMIT - 1)
TOKEN_IDS: Final = array(TOKENS, fewest=1)
_STOP_STRING: Final = string(1, MAX_STOP_STRING_CHARS)

_SAMPLING: Final[Mapping[str, Json]] = {
    "min_tokens": described(TOKENS, "No end of output is sampled before so many tokens."),
    "n": described(integer(1, MAX_CHOICES), "Choices of each prompt."),
    "temperature": number(0, MAX_TEMPERATURE),
    "top_p": number(exclusiveMinimum=0, high=1),
    "top_k": described(integer(-1, TOKENS_LIMIT - 1), "0 and -1 keep the whole vocabulary."),
    "min_p": number(0, 1),
    "repetition_penalty": number(exclusiveMinimum=0, high=MAX_REPETITION_PENALTY),
    "presence_penalty": number(-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": number(-MAX_PENALTY, MAX_PENALTY),
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": number(),
        "maxProperties": MAX_BIASED_TOKENS,
        "description": "By token id; what is beyond -100 … 100 counts as these.",
    },
    "prompt_logprobs": described(
        integer(0, MAX_LOGPROBS), "Log probabilities of the prompt, with so many of the likeliest; not with stream."
    ),
    "seed": described(integer(-SEED_LIMIT, SEED_LIMIT - 1), "-1 is none."),
    "stop": either(_STOP_STRING, array(_STOP_STRING, most=MAX_STOP_STRINGS)),
    "stop_token_ids": array(TOKENS, most=MAX_STOP_TOKEN_IDS),
    "ignore_eos": boolean(),
    "include_stop_str_in_output": boolean(),
    "skip_special_tokens": boolean(),
}

_DELIVERY: Final[Mapping[str, Json]] = {
    "model": described(string(), "One of /v1/models; the first of them where it is absent."),
    "stream": boolean(),
    "stream_options": described(
        record(
            {"include_usage": nullable(boolean()), "continuous_usage_stats": nullable(boolean())},
            optional=("include_usage", "continuous_usage_stats"),
        ),
        "Only with stream.",
    ),
    "cache_salt": string(1, MAX_CACHE_SALT_CHARS),
    "priority": described(integer(-SEED_LIMIT, SEED_LIMIT - 1), "Other than 0 only where the server schedules by priority."),
}

TEXT_PART: Final = record({"type": one_of("text"), "text": string()})
MESSAGE: Final = record(
    {
        "role": one_of(*ROLES),
        "content": described(either(string(), array(TEXT_PART), {"type": "null"}), "Null is for assistants only."),
        "name": nullable(string()),
        "tool_calls": array({}, most=0) | {"type": ["array", "null"]},
    },
    optional=("content", "name", "tool_calls"),
)
PROMPT: Final = either(string(), array(string(), fewest=1), TOKEN_IDS, array(TOKEN_IDS, fewest=1))


def chat_body() -> Json:
    """Of `/v1/chat/completions`."""
    own = {
        "messages": array(MESSAGE, fewest=1),
        "prompt": described(string(), "A plain text instead of messages."),
        "max_tokens": described(TOKENS, "The rest of the context where it is absent; 0 only with prompt_logprobs."),
        "max_completion_tokens": described(TOKENS, "Wins over max_tokens."),
        "logprobs": boolean(),
        "top_logprobs": described(integer(0, MAX_LOGPROBS), "Only with logprobs."),
    }
    return _body(own, OF_CHAT) | {"anyOf": [_has("messages"), _has("prompt")]}


def completion_body() -> Json:
    """Of `/v1/completions`."""
    own = {
        "max_tokens": described(TOKENS, "16 where it is absent; 0 only with echo or prompt_logprobs."),
        "max_completion_tokens": described(TOKENS, "Wins over max_tokens."),
        "logprobs": integer(0, MAX_LOGPROBS),
        "echo": boolean(),
    }
    body = _body(own, OF_COMPLETIONS)
    return body | {"required": ["prompt"], "properties": {"prompt": PROMPT, **body["properties"]}}


def abort_body() -> Json:
    """Of `/abort_request`."""
    names = ("rid", "id", "request_id")
    named = {name: nullable(string()) for name in names}
    return record({**named, "abort_all": boolean()}, optional=(*names, "abort_all"))


def optional_members(members: Mapping[str, Json]) -> Json:
    """An object whose members may be absent or null."""
    return {"type": "object", "properties": {name: nullable(schema) for name, schema in members.items()}}


def _body(own: Mapping[str, Json], unsupported: Mapping[str, tuple[Any, ...]]) -> Json:
    neutral = {
        name: described(one_of(*values), "Not supported: only values that change nothing are taken.")
        for name, values in unsupported.items()
    }
    return optional_members({**own, **_SAMPLING, **_DELIVERY, **neutral})


def _has(name: str) -> Json:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}
