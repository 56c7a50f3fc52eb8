"""The fields that chat and completions have in common, and their limits.

Must not know: what a field means to the engine.
"""

from typing import Final

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.placement import MAX_CACHE_SALT_CHARS
from layered_llm.domain.sampling import (
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_BIAS,
    MAX_BIASED_TOKENS,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_SIGMAS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TEMPERATURE,
    SEED_LIMIT,
    TOKENS_LIMIT,
)
from layered_llm.transport.http.openai.schema import fields as read
from layered_llm.transport.http.openai.schema.bodies import Field, boolean, bounded_string, integer, number, read_all, table_of
from layered_llm.transport.http.openai.schema.fields import Json

MAX_REQUEST_ID_CHARS: Final = 128
MAX_MODEL_CHARS: Final = 1024
"""Every chunk of a stream repeats the name, where the server takes any."""
_MOST_DIGITS: Final = 10
"""Of a token id, which is a signed 32-bit integer."""
TRUNCATION_SIDES: Final = ("left", "right")


def _stop(param: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (read.text(param, value),)
    if isinstance(value, list):
        return read.texts(param, value, MAX_STOP_STRINGS)
    raise read.wrong_type(param, "a string or a list of strings", value)


def _stop_token_ids(param: str, value: object) -> tuple[int, ...]:
    return _ids(param, value, MAX_STOP_TOKEN_IDS)


def _allowed_token_ids(param: str, value: object) -> tuple[int, ...]:
    ids = _ids(param, value, MAX_ALLOWED_TOKENS)
    if not ids:
        raise ParameterError(param, f"{param} must not be empty: no token could be sampled")
    return ids


def _ids(param: str, value: object, limit: int) -> tuple[int, ...]:
    if isinstance(value, list):
        read.at_most(param, value, limit)
        return read.token_ids(param, value, TOKENS_LIMIT)
    raise read.wrong_type(param, "a list of token ids", value)


def _bad_words(param: str, value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        return read.texts(param, value, MAX_BAD_WORDS)
    raise read.wrong_type(param, "a list of strings", value)


def _sigmas(param: str, value: object) -> float:
    """Below 0 is llama.cpp's word for none."""
    return max(read.number(param, value, -1, MAX_SIGMAS), 0.0)


def _truncation_side(param: str, value: object) -> str:
    if value not in TRUNCATION_SIDES:
        raise ParameterError(param, f"{param} must be one of {', '.join(TRUNCATION_SIDES)}, got {read.shown(value)}")
    return str(value)


def _logit_bias(param: str, value: object) -> tuple[tuple[int, float], ...]:
    biases: list[tuple[int, float]] = []
    given = read.json_object(param, value)
    read.at_most(param, given, MAX_BIASED_TOKENS)
    for key, item in given.items():
        if not (key.isascii() and key.isdigit() and len(key) <= _MOST_DIGITS):
            raise ParameterError(param, f"the keys of {param} must be token ids, got {read.shown(key)}")
        biases.append((int(key), read.number(param, item, -MAX_BIAS, MAX_BIAS)))
    return tuple(biases)


def _request_id(param: str, value: object) -> str:
    name = read.text(param, value)
    if not (0 < len(name) <= MAX_REQUEST_ID_CHARS and all("!" <= char <= "~" for char in name)):
        message = f"{param} must be 1 to {MAX_REQUEST_ID_CHARS} visible ASCII characters, got {read.shown(name)}"
        raise ParameterError(param, message)
    return name


def _kept_tokens(param: str, value: object) -> int:
    kept: int = read.integer(param, value, -1, TOKENS_LIMIT - 1)
    if kept == 0:
        raise ParameterError(param, f"{param} must be -1 or at least 1, got 0")
    return kept


_STRINGS: Final[Json] = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_STRING_CHARS}}
_TOKEN_ID: Final[Json] = {"type": "integer", "minimum": 0, "maximum": TOKENS_LIMIT - 1}

STREAM_OPTIONS: Final = table_of(
    boolean("include_usage", "The stream ends with a chunk that has no choices but the request's token counts."),
    boolean("continuous_usage_stats", "With include_usage: every chunk has the counts so far."),
)

SAMPLING: Final = (
    integer(
        "max_tokens",
        0,
        TOKENS_LIMIT - 1,
        "Most tokens of a choice; what the context does not hold is not sampled. 0: the prompt alone is computed.",
    ),
    integer("max_completion_tokens", 0, TOKENS_LIMIT - 1, "OpenAI's newer name of max_tokens; wins over it."),
    integer("min_tokens", 0, TOKENS_LIMIT - 1, "Nothing ends a choice before it has so many tokens."),
    integer("n", 1, MAX_CHOICES, "Choices for each prompt; the prompt is computed once."),
    number("temperature", 0, MAX_TEMPERATURE, "0 is greedy."),
    number("top_p", 0, 1, "Only the likeliest tokens that add up to this probability are sampled.", above_low=True),
    integer("top_k", -1, TOKENS_LIMIT - 1, "Only so many of the likeliest tokens are sampled; 0 and -1: all."),
    number("min_p", 0, 1, "Tokens below this share of the likeliest one's probability are not sampled."),
    Field(
        "top_n_sigma",
        {"type": "number", "minimum": -1, "maximum": MAX_SIGMAS},
        _sigmas,
        "Tokens whose logits are so many standard deviations below the likeliest one's are not sampled; 0 and below: all.",
    ),
    number(
        "repetition_penalty",
        0,
        MAX_REPETITION_PENALTY,
        "Divides the logits of tokens that are in the prompt or the output.",
        above_low=True,
    ),
    number("presence_penalty", -MAX_PENALTY, MAX_PENALTY, "Subtracted from the logits of tokens that are in the output."),
    number("frequency_penalty", -MAX_PENALTY, MAX_PENALTY, "The same, once for each time that the token is there."),
    Field(
        "logit_bias",
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
            "maxProperties": MAX_BIASED_TOKENS,
        },
        _logit_bias,
        "Token id to what is added to its logit.",
    ),
    Field(
        "allowed_token_ids",
        {"type": "array", "items": _TOKEN_ID, "minItems": 1, "maxItems": MAX_ALLOWED_TOKENS},
        _allowed_token_ids,
        "Only these tokens are sampled.",
    ),
    Field(
        "bad_words",
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_BAD_WORD_CHARS},
            "maxItems": MAX_BAD_WORDS,
        },
        _bad_words,
        "No output has these: the last token of each, with or without a space before it, is not sampled after the others.",
    ),
    integer("seed", -SEED_LIMIT, SEED_LIMIT - 1, "The same seed gives the same output, whatever runs beside; -1: none."),
    Field(
        "stop",
        {"anyOf": [_STRINGS["items"], {**_STRINGS, "maxItems": MAX_STOP_STRINGS}]},
        _stop,
        "Texts before which a choice ends.",
    ),
    Field(
        "stop_token_ids",
        {"type": "array", "items": _TOKEN_ID, "maxItems": MAX_STOP_TOKEN_IDS},
        _stop_token_ids,
        "Tokens that end a choice, besides the model's own.",
    ),
    boolean("ignore_eos", "The model's own end tokens end nothing."),
    boolean("include_stop_str_in_output", "The text holds what ended it."),
    boolean("skip_special_tokens", "Special tokens have no text; true where absent."),
    boolean("spaces_between_special_tokens", "Without effect: no tokenizer that is served puts spaces there."),
)

TELLING: Final = (
    boolean("echo", "The text begins with the prompt, or with the assistant's last turn."),
    integer("prompt_logprobs", 0, MAX_LOGPROBS, "Log probabilities of the prompt, with so many of the likeliest beside each."),
    boolean("return_token_ids", "The prompt's token ids and each choice's are told."),
    boolean("return_tokens_as_token_ids", "Log probabilities name tokens as token_id:N, and not by their text."),
)

PROMPT: Final = (
    boolean("add_special_tokens", "The tokenizer's own tokens are put around the prompt: to a text, not to a conversation."),
    Field(
        "truncate_prompt_tokens",
        {"type": "integer", "minimum": -1, "maximum": TOKENS_LIMIT - 1, "not": {"const": 0}},
        _kept_tokens,
        "A longer prompt loses its beginning; -1: as much as the context asks for.",
    ),
    Field(
        "truncation_side",
        {"enum": list(TRUNCATION_SIDES)},
        _truncation_side,
        "With truncate_prompt_tokens: which end of the prompt is lost; left where absent.",
    ),
)

MODEL: Final = bounded_string("model", 0, MAX_MODEL_CHARS, "Which model; the first that is served where absent.")

PLACEMENT: Final = (
    bounded_string("cache_salt", 1, MAX_CACHE_SALT_CHARS, "Computed prefixes are shared only with requests of the same salt."),
    integer("priority", -SEED_LIMIT, SEED_LIMIT - 1, "The lowest is served first, where the server goes by priority."),
)

DELIVERY: Final = (
    MODEL,
    boolean("stream", "The answer comes as server-sent events."),
    Field(
        "stream_options",
        {"type": "object", "properties": {option.name: option.schema for option in STREAM_OPTIONS.values()}},
        lambda param, value: read_all(STREAM_OPTIONS, read.json_object(param, value)),
        "Only where stream is true.",
    ),
    Field(
        "request_id",
        {"type": "string", "pattern": f"^[!-~]{{1,{MAX_REQUEST_ID_CHARS}}}$"},
        _request_id,
        "The response's id is made of it; the header X-Request-Id does the same.",
    ),
    *PLACEMENT,
)

COMMON: Final = (*SAMPLING, *TELLING, *PROMPT, *DELIVERY)
"""What chat and completions have in common."""
