"""The body of `/generate`: SGLang's, and mini-sglang's `{prompt, max_tokens, ignore_eos}`.

Must not know: HTTP, the engine, which models are served.

The rules are those of the other bodies: null is absent, unknown members are ignored, a value of the wrong type or out of range
is an error that names it, and what would change the output but is not supported is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.placement import Placement
from layered_llm.domain.sampling import MAX_LOGPROBS, SEED_LIMIT, TOKENS_LIMIT, SamplingParams
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.json_schema import described, nullable, one_of
from layered_llm.transport.http.openai.schema import fields as read
from layered_llm.transport.http.openai.schema.bodies import Field, Reader, boolean, checked, integer, read_all, string, table_of
from layered_llm.transport.http.openai.schema.body_fields import MAX_REQUEST_ID_CHARS, PLACEMENT, SAMPLING
from layered_llm.transport.http.openai.schema.endpoint_fields import MAX_CHOICES_PER_BODY
from layered_llm.transport.http.openai.schema.unsupported import Neutral, refuse, refused_beside

DEFAULT_NEW_TOKENS: Final = 128
"""What SGLang generates when the body names no limit."""
DEFAULT_MINI_TOKENS: Final = 16
_WHOLE_VOCABULARY: Final = -1
_EACH: Final = ("sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num")
"""Fields that may be lists of one value for each prompt."""
_NO_PROMPT: Final = -1
"""The `logprob_start_len` that tells nothing of the prompt."""

_ALIKE: Final = (
    "allowed_token_ids", "bad_words", "frequency_penalty", "ignore_eos", "logit_bias", "min_p", "n", "presence_penalty",
    "repetition_penalty", "skip_special_tokens", "stop", "stop_token_ids", "temperature", "top_n_sigma", "top_p",
)  # fmt: skip
"""Members that SamplingParams has by the same name."""
_OTHERS: Final = ("spaces_between_special_tokens", "top_k")
SAMPLING_PARAMS: Final = table_of(
    integer(
        "max_new_tokens", 0, TOKENS_LIMIT - 1, "Most tokens of a choice; 128 where absent. 0: the prompt alone is computed."
    ),
    integer("min_new_tokens", 0, TOKENS_LIMIT - 1, "Nothing ends a choice before it has so many tokens."),
    *(field for field in SAMPLING if field.name in (*_ALIKE, *_OTHERS)),
    boolean("no_stop_trim", "The text holds what ended it."),
    integer("sampling_seed", -SEED_LIMIT, SEED_LIMIT - 1, "The same seed gives the same output, whatever runs beside."),
)
"""The members of `sampling_params`, by SGLang's names."""

REFUSED_IN_SAMPLING_PARAMS: Final[Neutral] = refused_beside(SAMPLING_PARAMS)


def _texts(param: str, value: object) -> tuple[Prompt, ...]:
    if isinstance(value, str):
        return (Prompt.of_text(read.text(param, value)),)
    values = _list(param, value, "a string or a list of strings")
    return tuple(map(Prompt.of_text, read.texts(param, values, MAX_CHOICES_PER_BODY)))


def _ids(param: str, value: object) -> tuple[Prompt, ...]:
    values = _list(param, value, "a list of token ids, or a list of such lists")
    if not isinstance(values[0], list):
        return (_one(param, values),)
    read.at_most(param, values, MAX_CHOICES_PER_BODY)
    return tuple(_one(f"{param}[{place}]", ids) for place, ids in enumerate(values))


def _one(param: str, value: object) -> Prompt:
    return Prompt.of_token_ids(read.token_ids(param, _list(param, value, "a list of token ids"), TOKENS_LIMIT))


def _list(param: str, value: object, expected: str) -> list[Any]:
    if not isinstance(value, list):
        raise read.wrong_type(param, expected, value)
    if not value:
        raise ParameterError(param, f"{param} must not be empty")
    return value


def _rids(param: str, value: object) -> tuple[str, ...]:
    names = read.texts(param, value, MAX_CHOICES_PER_BODY) if isinstance(value, list) else (value,)
    return tuple(read.bounded_text(param, name, 1, MAX_REQUEST_ID_CHARS) for name in names)


def _each(read_one: Reader) -> Reader:
    """A reader of one value for all prompts, or of a list of one for each of them, which it makes a tuple."""

    def read_all_of(param: str, value: object) -> object:
        if not isinstance(value, list):
            return read_one(param, value)
        read.at_most(param, _list(param, value, "a list"), MAX_CHOICES_PER_BODY)
        return tuple(read_one(f"{param}[{place}]", item) for place, item in enumerate(value))

    return read_all_of


def _for_each(field: Field) -> Field:
    """`field` with one value for all prompts, or a list of one for each."""
    schema = {"anyOf": [field.schema, {"type": "array", "items": field.schema, **_SOME}]}
    return attrs.evolve(
        field, schema=schema, read=_each(field.read), summary=f"{field.summary} Or a list, of one for each prompt."
    )


def _sampling_params(param: str, value: object) -> Mapping[str, Any]:
    fields = read.json_object(param, value)
    try:
        refuse(fields, REFUSED_IN_SAMPLING_PARAMS, SAMPLING_PARAMS)
        return read_all(SAMPLING_PARAMS, fields)
    except ParameterError as error:
        raise ParameterError(f"{param}.{error.param}", f"{param}.{error.message}") from None


SAMPLING_SCHEMA: Final = {
    "type": "object",
    "properties": {
        **{field.name: described(nullable(field.schema), field.summary) for field in SAMPLING_PARAMS.values()},
        **{name: one_of(*neutral, None) for name, neutral in REFUSED_IN_SAMPLING_PARAMS.items()},
    },
}
_TOKEN_IDS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": TOKENS_LIMIT - 1}, "minItems": 1}
_SOME: Final = {"minItems": 1, "maxItems": MAX_CHOICES_PER_BODY}
_RID: Final = {"type": "string", "minLength": 1, "maxLength": MAX_REQUEST_ID_CHARS}

GENERATE: Final = table_of(
    Field(
        "text",
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, **_SOME}]},
        _texts,
        "One text, or several.",
    ),
    Field(
        "input_ids",
        {"anyOf": [_TOKEN_IDS, {"type": "array", "items": _TOKEN_IDS, **_SOME}]},
        _ids,
        "Token ids of one prompt, or of several, in place of text.",
    ),
    string("prompt", "mini-sglang's shape: a text in place of these, which is sampled greedily and streamed."),
    integer("max_tokens", 0, TOKENS_LIMIT - 1, "With prompt: most tokens; 16 where absent."),
    boolean("ignore_eos", "With prompt: the model's own end tokens end nothing."),
    _for_each(Field("sampling_params", SAMPLING_SCHEMA, _sampling_params, "How each prompt is sampled.")),
    Field(
        "rid",
        {"anyOf": [_RID, {"type": "array", "items": _RID, "maxItems": MAX_CHOICES_PER_BODY}]},
        _rids,
        "The id that each answer is told with; one for several prompts is the beginning of theirs.",
    ),
    boolean("stream", "The answer comes as server-sent events, each with the whole text so far."),
    _for_each(boolean("return_logprob", "Log probabilities are told.")),
    _for_each(
        integer(
            "logprob_start_len", -1, TOKENS_LIMIT - 1, "With return_logprob: of the prompt too, from this token on; -1: not."
        )
    ),
    _for_each(
        integer("top_logprobs_num", 0, MAX_LOGPROBS, "With return_logprob: so many of the likeliest tokens beside each.")
    ),
    boolean("return_text_in_logprobs", "Log probabilities name the text of their tokens."),
    *PLACEMENT,
)
REFUSED_IN_GENERATE: Final[Neutral] = refused_beside(GENERATE)


@attrs.frozen(kw_only=True)
class LogprobsAsked:
    """Which log probabilities to tell."""

    prompt_from: int | None
    """The first token of the prompt that they are told of; None: not of the prompt."""
    has_top: bool
    with_text: bool


@attrs.frozen(kw_only=True)
class NativeRequest:
    """A body of `/generate`."""

    prompts: tuple[Prompt, ...]
    params: tuple[SamplingParams, ...]
    """One for each prompt; all have the same number of choices."""
    placement: Placement
    rids: tuple[str, ...]
    """One for each prompt, or none at all."""
    is_batch: bool
    """The answer is a list, even of one."""
    stream: bool
    logprobs: tuple[LogprobsAsked | None, ...]
    """Of each prompt."""

    @property
    def choices_per_prompt(self) -> int:
        return self.params[0].n

    def params_of(self, prompt: int) -> SamplingParams:
        return self.params[prompt]


_ONLY_WITH_PROMPT: Final[Mapping[str, str]] = {"max_tokens": "max_new_tokens", "ignore_eos": "ignore_eos"}
"""Fields of mini-sglang's body, and what SGLang's has for them."""
_WAYS: Final = (
    *(name for name in GENERATE if name not in _ONLY_WITH_PROMPT),
    *(f"sampling_params.{name}" for name in SAMPLING_PARAMS),
)
"""What may be given in place of a field that is not supported."""


def parse_generate(body: bytes) -> NativeRequest | ApiError:
    """The request in `body`, or why it is none."""
    return checked(body, _request, GENERATE, REFUSED_IN_GENERATE, _WAYS)


def _request(given: read.JsonObject, written: read.JsonObject) -> NativeRequest:
    kinds = [name for name in ("text", "input_ids", "prompt") if name in given]
    if len(kinds) != 1:
        raise ParameterError("text", "give one of text, input_ids and prompt")
    is_mini = kinds == ["prompt"]
    for name, instead in () if is_mini else _ONLY_WITH_PROMPT.items():
        if name in given:
            raise ParameterError(name, f"{name} goes with prompt; with {kinds[0]} give sampling_params.{instead}")
    prompts = (Prompt.of_text(given["prompt"]),) if is_mini else given[kinds[0]]
    is_batch = not is_mini and _is_list(written[kinds[0]])
    each = [_of_prompt(given, place, len(prompts) if is_batch else None) for place in range(len(prompts))]
    logprobs = tuple(map(_logprobs, each))
    where = "sampling_params[{}]" if isinstance(given.get("sampling_params"), tuple) else "sampling_params"
    params = tuple(
        _mini_params(one) if is_mini else _native_params(one, told, where.format(place))
        for place, (one, told) in enumerate(zip(each, logprobs, strict=True))
    )
    choices = params[0].n
    if any(one.n != choices for one in params):
        raise ParameterError("sampling_params", "sampling_params must have the same n for every prompt")
    if len(prompts) * choices > MAX_CHOICES_PER_BODY:
        message = f"{len(prompts)} prompts times n={choices} are more than {MAX_CHOICES_PER_BODY} choices"
        raise ParameterError(kinds[0], message)
    return NativeRequest(
        prompts=prompts,
        params=params,
        placement=Placement(cache_salt=given.get("cache_salt"), priority=given.get("priority", 0)),
        rids=_matching_rids(written.get("rid"), given.get("rid", ()), len(prompts)),
        is_batch=choices > 1 or is_batch,
        stream=given.get("stream", is_mini),
        logprobs=logprobs,
    )


def _is_list(value: Sequence[object] | str) -> bool:
    """Whether a text or a list of ids is one of several."""
    return isinstance(value, list) and isinstance(value[0], str | list)


def _of_prompt(given: Mapping[str, Any], place: int, prompts: int | None) -> Mapping[str, Any]:
    """What a body says of the prompt at `place`; `prompts` is how many a batch has, None where there is no batch."""
    own: dict[str, Any] = {}
    for name in _EACH:
        values = given.get(name)
        if not isinstance(values, tuple):
            continue
        if prompts is None:
            raise ParameterError(name, f"{name} may only be a list where text or input_ids is a list of several prompts")
        if len(values) != prompts:
            raise ParameterError(name, f"{name} has {len(values)} items for {prompts} prompts")
        own[name] = values[place]
    return {**given, **own}


def _matching_rids(written: object, rids: tuple[str, ...], prompts: int) -> tuple[str, ...]:
    if isinstance(written, str) and prompts > 1:
        return tuple(f"{written}_{place}" for place in range(prompts))
    if rids and len(rids) != prompts:
        raise ParameterError("rid", f"rid names {len(rids)} requests for {prompts} prompts")
    return rids


def _logprobs(given: Mapping[str, Any]) -> LogprobsAsked | None:
    if not given.get("return_logprob", False):
        return None
    start = given.get("logprob_start_len", _NO_PROMPT)
    return LogprobsAsked(
        prompt_from=None if start == _NO_PROMPT else start,
        has_top=given.get("top_logprobs_num", 0) > 0,
        with_text=given.get("return_text_in_logprobs", False),
    )


def _mini_params(given: Mapping[str, Any]) -> SamplingParams:
    for name in ("sampling_params", "return_logprob"):
        if given.get(name, False) is not False:
            raise ParameterError(name, f"{name} goes with text or input_ids, not with prompt")
    return SamplingParams(
        max_tokens=given.get("max_tokens", DEFAULT_MINI_TOKENS), ignore_eos=given.get("ignore_eos", False), temperature=0.0
    )


def _native_params(given: Mapping[str, Any], logprobs: LogprobsAsked | None, where: str) -> SamplingParams:
    """`where` is what the sampling parameters of this prompt are called in errors."""
    sampling: Mapping[str, Any] = given.get("sampling_params", {})
    told = None if logprobs is None else given.get("top_logprobs_num", 0)
    told_of_prompt = None if logprobs is None or logprobs.prompt_from is None else told
    top_k = sampling.get("top_k")
    most = sampling.get("max_new_tokens", DEFAULT_NEW_TOKENS)
    least = read.integer(f"{where}.min_new_tokens", sampling.get("min_new_tokens", 0), 0, most)
    try:
        return SamplingParams(
            **{name: sampling[name] for name in _ALIKE if name in sampling},
            max_tokens=most,
            min_tokens=least,
            top_k=0 if top_k == _WHOLE_VOCABULARY else top_k,
            include_stop_str_in_output=sampling.get("no_stop_trim", False),
            seed=sampling.get("sampling_seed"),
            logprobs=told,
            prompt_logprobs=told_of_prompt,
        )
    except ParameterError as error:
        raise ParameterError(f"{where}.{error.param}", error.message) from None
