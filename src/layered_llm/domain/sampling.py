"""Sampling parameters of one request, checked at construction so that an invalid set cannot exist, and a model's defaults.

Must not know: JSON names, defaults of an endpoint, where a model says what it is sampled with, tokenizers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import attrs

from layered_llm.domain.errors import ParameterError, shown

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

_CHECK: Final = "check"

LogitBias: TypeAlias = Mapping[int, float] | Iterable[tuple[int, float]]


def _check_texts(param: str, values: object, *, most: int, one: str, most_chars: int) -> None:
    for text in _checked_sequence(param, values, most):
        if not isinstance(text, str):
            raise ParameterError(param, f"{param} must hold strings, got {shown(text)}")
        if not 0 < len(text) <= most_chars:
            raise ParameterError(param, f"{one} must have 1 to {most_chars} characters, got {len(text)}")


def _check_ids(param: str, values: object, *, most: int) -> None:
    for token in _checked_sequence(param, values, most):
        _check_number(param, token, low=0, high=TOKENS_LIMIT - 1)


def _check_flag(param: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ParameterError(param, f"{param} must be True or False, got {shown(value)}")


def _checked_sequence(param: str, values: object, most: int) -> Sequence[object]:
    if not isinstance(values, list | tuple):
        raise ParameterError(param, f"{param} must be a tuple or a list, got {shown(values)}")
    if len(values) > most:
        raise ParameterError(param, f"{param} holds {len(values)} items, at most {most} are allowed")
    return values


def _check_number(param: str, value: object, *, low: float, high: float) -> None:
    """Where the limits are integers the value has to be one."""
    kind, kinds = ("an integer", int) if isinstance(low, int) else ("a number", (int, float))
    if isinstance(value, bool) or not isinstance(value, kinds) or value != value:  # noqa: PLR0124 - NaN
        raise ParameterError(param, f"{param} must be {kind}, got {shown(value)}")
    if not low <= value <= high:
        raise ParameterError(param, f"{param} must be between {shown(low)} and {shown(high)}, got {shown(value)}")


def _check_biases(param: str, biases: tuple[tuple[object, object], ...]) -> None:
    if len(biases) > MAX_BIASED_TOKENS:
        raise ParameterError(param, f"{param} names {len(biases)} tokens, at most {MAX_BIASED_TOKENS} are allowed")
    for token, bias in biases:
        _check_number(param, token, low=0, high=TOKENS_LIMIT - 1)
        _check_number(param, bias, low=-MAX_BIAS, high=MAX_BIAS)
    if len({token for token, _ in biases}) < len(biases):
        raise ParameterError(param, f"{param} names a token twice")


def _field(
    default: object, check: Callable[..., None], *, converter: Callable[[Any], Any] | None = None, **limits: object
) -> Any:
    return attrs.field(default=default, converter=converter, metadata={_CHECK: partial(check, **limits)})


def _pairs(biases: LogitBias) -> tuple[tuple[int, float], ...]:
    if biases == ():
        return ()
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

    max_tokens: int | None = _field(None, _check_number, low=0, high=TOKENS_LIMIT - 1)
    """Most tokens of one choice, its eos included; None means the rest of the context. With 0 the prompt alone is computed."""
    min_tokens: int = _field(0, _check_number, low=0, high=TOKENS_LIMIT - 1)
    """No eos and no stop id is sampled before this many tokens."""
    n: int = _field(1, _check_number, low=1, high=MAX_CHOICES)
    temperature: float | None = _field(None, _check_number, low=0.0, high=MAX_TEMPERATURE)
    top_p: float | None = _field(None, _check_number, low=0.0, high=1.0)
    top_k: int | None = _field(None, _check_number, low=0, high=TOKENS_LIMIT - 1)
    """0 keeps the whole vocabulary."""
    min_p: float | None = _field(None, _check_number, low=0.0, high=1.0)
    """Tokens less likely than this share of the likeliest token's probability are not sampled; 0 keeps all."""
    top_n_sigma: float = _field(0.0, _check_number, low=0.0, high=MAX_SIGMAS)
    """Tokens are not sampled whose logit is further below the likeliest one's than so many standard deviations of all logits;
    0 keeps all."""
    repetition_penalty: float | None = _field(None, _check_number, low=0.0, high=MAX_REPETITION_PENALTY)
    """Above 1, logits of tokens in the prompt or the output so far are divided by it, or multiplied where negative."""
    presence_penalty: float = _field(0.0, _check_number, low=-MAX_PENALTY, high=MAX_PENALTY)
    """Subtracted once from the logits of tokens in the output so far."""
    frequency_penalty: float = _field(0.0, _check_number, low=-MAX_PENALTY, high=MAX_PENALTY)
    """Subtracted from the logits of tokens in the output so far, once for each time that they came."""
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(default=(), converter=_pairs, metadata={_CHECK: _check_biases})
    """(token id, what is added to its logit), each id once; a mapping is taken too."""
    allowed_token_ids: tuple[int, ...] | None = _field(None, _check_ids, most=MAX_ALLOWED_TOKENS)
    """Only these tokens are sampled; None: all of the vocabulary."""
    bad_words: tuple[str, ...] = _field((), _check_texts, most=MAX_BAD_WORDS, one="a bad word", most_chars=MAX_BAD_WORD_CHARS)
    """Texts that no output has as a whole: the last token of each, with and without a space before it, is not sampled where the
    output ends with its others. Where that leaves no token at all, it is sampled all the same."""
    logprobs: int | None = _field(None, _check_number, low=0, high=MAX_LOGPROBS)
    """How many of the likeliest tokens come with each sampled token, besides its own log probability; None: neither comes.

    Log probabilities are the model's own: before temperature, penalties, biases and masks.
    """
    prompt_logprobs: int | None = _field(None, _check_number, low=0, high=MAX_LOGPROBS)
    """The same for the prompt's tokens, of which the first has nothing that it depends on; the cache is not read then."""
    echo: bool = _field(False, _check_flag)
    """Whether the text of each choice begins with the prompt; of a conversation with its last turn, if the assistant's."""
    tells_prompt_ids: bool = _field(False, _check_flag)
    """Whether the response has the ids of the prompt's tokens."""
    seed: int | None = _field(None, _check_number, low=-SEED_LIMIT, high=SEED_LIMIT - 1)
    """None: the engine client draws one, so that every request is reproducible from its record."""
    stop: tuple[str, ...] = _field(
        (), _check_texts, most=MAX_STOP_STRINGS, one="a stop string", most_chars=MAX_STOP_STRING_CHARS
    )
    stop_token_ids: tuple[int, ...] = _field((), _check_ids, most=MAX_STOP_TOKEN_IDS)
    ignore_eos: bool = _field(False, _check_flag)
    include_stop_str_in_output: bool = _field(False, _check_flag)
    skip_special_tokens: bool = _field(True, _check_flag)

    def __attrs_post_init__(self) -> None:
        for name, default, check in _CHECKS:
            value = getattr(self, name)
            if value is not default:
                check(name, value)
        _check_together(self)


_CHECKS: Final = tuple((field.name, field.default, field.metadata[_CHECK]) for field in attrs.fields(SamplingParams))
"""None is a value of a field whose default it is."""


def _check_together(params: SamplingParams) -> None:
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise ParameterError(
            "min_tokens", f"min_tokens must be at most max_tokens={params.max_tokens}, got {params.min_tokens}"
        )
    if params.top_p == 0.0:
        raise ParameterError("top_p", "top_p must be greater than 0 and at most 1, got 0")
    if params.repetition_penalty == 0.0:
        raise ParameterError("repetition_penalty", "repetition_penalty must be greater than 0, got 0")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise ParameterError("allowed_token_ids", "allowed_token_ids must not be empty: no token could be sampled")


@attrs.frozen(kw_only=True)
class DecidedSampling:
    """What a request leaves open, decided."""

    temperature: float
    """0 is greedy."""
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_tokens: int | None
    """None: nobody limits the output."""
    min_tokens: int


@attrs.frozen(kw_only=True)
class SamplingDefaults:
    """What a model is sampled with where a request does not say. Raises ParameterError for a value out of range."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """Most tokens of any choice, whatever a request asks for; None is no such limit."""

    def __attrs_post_init__(self) -> None:
        SamplingParams(**attrs.asdict(self))
        if self.max_tokens == 0:
            raise ParameterError("max_tokens", "max_tokens must be at least 1, got 0: nothing would ever be sampled")

    def applied(self, params: SamplingParams) -> DecidedSampling:
        """What `params` and this model decide together."""
        max_tokens = params.max_tokens
        if max_tokens is None or (self.max_tokens is not None and self.max_tokens < max_tokens):
            max_tokens = self.max_tokens
        temperature = self.temperature if params.temperature is None else params.temperature
        return DecidedSampling(
            temperature=0.0 if temperature < GREEDY_TEMPERATURE else temperature,
            top_p=self.top_p if params.top_p is None else params.top_p,
            top_k=self.top_k if params.top_k is None else params.top_k,
            min_p=self.min_p if params.min_p is None else params.min_p,
            repetition_penalty=self.repetition_penalty if params.repetition_penalty is None else params.repetition_penalty,
            max_tokens=max_tokens,
            min_tokens=params.min_tokens if max_tokens is None else min(params.min_tokens, max_tokens),
        )


NO_DEFAULTS: Final = SamplingDefaults()
