"""Sampling parameters of one request, checked at construction so that an invalid set cannot exist.

Must not know: JSON names, defaults of an endpoint, tokenizers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from layered_llm.domain.errors import ParameterError

MAX_CHOICES: Final = 128
MAX_STOP_STRINGS: Final = 64
MAX_STOP_STRING_CHARS: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 128
MAX_TEMPERATURE: Final = 2.0
MAX_PENALTY: Final = 2.0
MAX_REPETITION_PENALTY: Final = 1000.0
MAX_BIAS: Final = 100.0
MAX_BIASED_TOKENS: Final = 1024
MAX_ALLOWED_TOKENS: Final = 1024
MAX_BAD_WORDS: Final = 128
MAX_BAD_WORD_CHARS: Final = 1024
MAX_SIGMAS: Final = 1000.0
MAX_LOGPROBS: Final = 20
SEED_LIMIT: Final = 1 << 63
TOKENS_LIMIT: Final = 1 << 31
GREEDY_TEMPERATURE: Final = 1e-5
"""Temperatures below this are greedy: dividing logits by them would overflow."""

_FLAGS: Final = ("echo", "tells_prompt_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
_SHOWN_LIMIT: Final = 10**20
_SHOWN_CHARS: Final = 40

LogitBias: TypeAlias = Mapping[int, float] | Iterable[tuple[int, float]]


def _pairs(biases: LogitBias) -> tuple[tuple[int, float], ...]:
    try:
        return tuple((token, bias) for token, bias in (biases.items() if isinstance(biases, Mapping) else biases))
    except (TypeError, ValueError):
        raise ParameterError("logit_bias", "logit_bias must be a mapping of token ids to numbers") from None


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How the choices of one request are sampled and where they end.

    None leaves temperature, top_p, top_k, min_p and repetition_penalty to the model's own defaults (`generation_config.json`),
    and where it has none to 1, 1, 0, 0 and 1. Raises ParameterError, naming the field, for a value out of range.
    """

    max_tokens: int | None = None
    """Most tokens of one choice, its eos included; None means the rest of the context. With 0 the prompt alone is computed."""
    min_tokens: int = 0
    """No eos and no stop id is sampled before this many tokens."""
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """0 keeps the whole vocabulary."""
    min_p: float | None = None
    """Tokens less likely than this share of the likeliest token's probability are not sampled; 0 keeps all."""
    top_n_sigma: float = 0.0
    """Tokens are not sampled whose logit is further below the likeliest one's than so many standard deviations of all logits;
    0 keeps all."""
    repetition_penalty: float | None = None
    """Above 1, logits of tokens in the prompt or the output so far are divided by it, or multiplied where negative."""
    presence_penalty: float = 0.0
    """Subtracted once from the logits of tokens in the output so far."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens in the output so far, once for each time that they came."""
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(default=(), converter=_pairs)
    """(token id, what is added to its logit), each id once; a mapping is taken too."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these tokens are sampled; None: all of the vocabulary."""
    bad_words: tuple[str, ...] = ()
    """Texts that no output has as a whole: the last token of each, with and without a space before it, is not sampled where the
    output ends with its others. Where that leaves no token at all, it is sampled all the same."""
    logprobs: int | None = None
    """How many of the likeliest tokens are told with each sampled token, besides its own log probability; None tells neither.

    Log probabilities are the model's own: before temperature, penalties, biases and masks.
    """
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens, of which the first has nothing that it depends on; the cache is not read then."""
    echo: bool = False
    """Whether the text of each choice begins with the prompt; of a conversation with its last turn, if the assistant's."""
    tells_prompt_ids: bool = False
    """Whether the ids of the prompt's tokens are told."""
    seed: int | None = None
    """None: whoever opens the request draws one, so that every request is reproducible from its record."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __attrs_post_init__(self) -> None:
        _check_lengths(self)
        _check_int("n", self.n, 1, MAX_CHOICES)
        _check_filters(self)
        _check_penalties(self)
        _check_biases(self.logit_bias)
        _check_restrictions(self)
        _check_optional_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _check_optional_int("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        _check_optional_int("seed", self.seed, -SEED_LIMIT, SEED_LIMIT - 1)
        _check_stops(self)
        _check_flags(self)

    @property
    def is_greedy(self) -> bool:
        return self.temperature is not None and self.temperature < GREEDY_TEMPERATURE


def _check_lengths(params: SamplingParams) -> None:
    _check_int("min_tokens", params.min_tokens, 0, TOKENS_LIMIT - 1)
    if params.max_tokens is None:
        return
    _check_int("max_tokens", params.max_tokens, 0, TOKENS_LIMIT - 1)
    if params.min_tokens > params.max_tokens:
        raise ParameterError(
            "min_tokens", f"min_tokens must be at most max_tokens={params.max_tokens}, got {params.min_tokens}"
        )


def _check_filters(params: SamplingParams) -> None:
    _check_optional_float("temperature", params.temperature, 0.0, MAX_TEMPERATURE)
    _check_optional_float("top_p", params.top_p, 0.0, 1.0)
    if params.top_p == 0.0:
        raise ParameterError("top_p", "top_p must be greater than 0 and at most 1, got 0")
    _check_optional_int("top_k", params.top_k, 0, TOKENS_LIMIT - 1)
    _check_optional_float("min_p", params.min_p, 0.0, 1.0)
    _check_float("top_n_sigma", params.top_n_sigma, 0.0, MAX_SIGMAS)


def _check_penalties(params: SamplingParams) -> None:
    _check_float("presence_penalty", params.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _check_float("frequency_penalty", params.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    _check_optional_float("repetition_penalty", params.repetition_penalty, 0.0, MAX_REPETITION_PENALTY)
    if params.repetition_penalty == 0.0:
        raise ParameterError("repetition_penalty", "repetition_penalty must be greater than 0, got 0")


def _check_biases(biases: tuple[tuple[int, float], ...]) -> None:
    if len(biases) > MAX_BIASED_TOKENS:
        raise ParameterError("logit_bias", f"logit_bias names {len(biases)} tokens, at most {MAX_BIASED_TOKENS} are allowed")
    for token, bias in biases:
        _check_int("logit_bias", token, 0, TOKENS_LIMIT - 1)
        _check_float("logit_bias", bias, -MAX_BIAS, MAX_BIAS)
    if len({token for token, _ in biases}) < len(biases):
        raise ParameterError("logit_bias", "logit_bias names a token twice")


def _check_restrictions(params: SamplingParams) -> None:
    if params.allowed_token_ids is not None:
        _check_ids("allowed_token_ids", params.allowed_token_ids, MAX_ALLOWED_TOKENS)
        if not params.allowed_token_ids:
            raise ParameterError("allowed_token_ids", "allowed_token_ids must not be empty: no token could be sampled")
    _check_texts("bad_words", params.bad_words, MAX_BAD_WORDS, "a bad word", MAX_BAD_WORD_CHARS)


def _check_stops(params: SamplingParams) -> None:
    _check_texts("stop", params.stop, MAX_STOP_STRINGS, "a stop string", MAX_STOP_STRING_CHARS)
    _check_ids("stop_token_ids", params.stop_token_ids, MAX_STOP_TOKEN_IDS)


def _check_texts(param: str, values: object, most: int, one: str, most_chars: int) -> None:
    for text in _checked_sequence(param, values, most):
        if not isinstance(text, str):
            raise ParameterError(param, f"{param} must hold strings, got {_shown(text)}")
        if not 0 < len(text) <= most_chars:
            raise ParameterError(param, f"{one} must have 1 to {most_chars} characters, got {len(text)}")


def _check_ids(param: str, values: object, most: int) -> None:
    for token in _checked_sequence(param, values, most):
        _check_int(param, token, 0, TOKENS_LIMIT - 1)


def _check_flags(params: SamplingParams) -> None:
    for name in _FLAGS:
        value = getattr(params, name)
        if not isinstance(value, bool):
            raise ParameterError(name, f"{name} must be True or False, got {_shown(value)}")


def _checked_sequence(param: str, values: object, most: int) -> Sequence[object]:
    if not isinstance(values, list | tuple):
        raise ParameterError(param, f"{param} must be a tuple or a list, got {_shown(values)}")
    if len(values) > most:
        raise ParameterError(param, f"{param} holds {len(values)} items, at most {most} are allowed")
    return values


def _check_optional_int(param: str, value: object, low: int, high: int) -> None:
    if value is not None:
        _check_int(param, value, low, high)


def _check_int(param: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(param, f"{param} must be an integer, got {_shown(value)}")
    if not low <= value <= high:
        raise ParameterError(param, f"{param} must be between {low} and {high}, got {_shown(value)}")


def _check_optional_float(param: str, value: object, low: float, high: float) -> None:
    if value is not None:
        _check_float(param, value, low, high)


def _check_float(param: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - NaN
        raise ParameterError(param, f"{param} must be a number, got {_shown(value)}")
    if not low <= value <= high:
        raise ParameterError(param, f"{param} must be between {low:g} and {high:g}, got {_shown(value)}")


def _shown(value: object) -> str:
    """Short, whatever it is: the interpreter itself writes no integer of more than some thousand digits."""
    match value:
        case bool() | None:
            return repr(value)
        case int():
            return str(value) if abs(value) < _SHOWN_LIMIT else f"an integer of {value.bit_length()} bits"
        case float():
            return f"{value:g}"
        case str() if len(value) <= _SHOWN_CHARS:
            return repr(value)
        case _:
            return f"a value of type {type(value).__name__}"
