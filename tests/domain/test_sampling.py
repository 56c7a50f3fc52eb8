import math
from typing import Any

import attrs
import pytest

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.sampling import NO_DEFAULTS, DecidedSampling, SamplingDefaults, SamplingParams

HUGE = 10**5000

MODEL = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=50, min_p=0.1, repetition_penalty=1.1, max_tokens=20)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 2**31),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("n", 0),
        ("n", 10**9),
        ("n", "2"),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", 10**400),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("top_n_sigma", -0.1),
        ("top_n_sigma", math.inf),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", (-1,)),
        ("allowed_token_ids", tuple(range(1025))),
        ("bad_words", ("",)),
        ("bad_words", "word"),
        ("bad_words", ("a",) * 129),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", 1001.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", -2.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", math.nan),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {2**31: 0.0}),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {"1": 0.0}),
        ("logit_bias", ((1, 0.0), (1, 1.0))),
        ("logit_bias", dict.fromkeys(range(1025), 0.0)),
        ("logit_bias", 5),
        ("logit_bias", (5,)),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 21),
        ("seed", 2**63),
        ("stop", ("",)),
        ("stop", ("x",) * 65),
        ("stop", ("x" * 1025,)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (1,) * 129),
        ("stop_token_ids", 5),
        ("stop", 5),
        ("stop", "ab"),
        ("stop", (5,)),
        ("ignore_eos", 1),
        ("skip_special_tokens", None),
        ("echo", "yes"),
    ],
)
def test_a_value_out_of_range_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**{field: value})

    assert field == caught.value.param
    assert len(caught.value.message) < 200
    assert field.split("_", maxsplit=1)[0] in caught.value.message


def test_no_number_is_too_long_to_be_refused_by_name() -> None:
    numbers = [field.name for field in attrs.fields(SamplingParams) if not isinstance(field.default, bool)]
    wrong: list[tuple[str, Any]] = [(name, HUGE) for name in numbers]
    wrong += [(name, (HUGE,)) for name in ("stop", "stop_token_ids", "logit_bias")]
    wrong += [("logit_bias", {HUGE: 1.0}), ("logit_bias", {1: HUGE}), ("temperature", -HUGE), ("seed", -HUGE)]
    for name, value in wrong:
        with pytest.raises(ParameterError) as caught:
            SamplingParams(**{name: value})
        assert name == caught.value.param
        assert len(caught.value.message) < 200


def test_no_token_at_all_may_be_asked_for_where_the_prompt_is_told() -> None:
    assert 0 == SamplingParams(max_tokens=0, echo=True).max_tokens
    assert 0 == SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens


def test_biases_are_taken_as_a_mapping_too() -> None:
    assert SamplingParams(logit_bias=((3, 1.0), (4, -100))) == SamplingParams(logit_bias={3: 1.0, 4: -100.0})


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingParams(min_tokens=5, max_tokens=4)

    assert "min_tokens" == caught.value.param


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (1e-6, True), (0.01, False), (1.0, False)])
def test_a_temperature_close_to_zero_is_greedy(temperature: float, greedy: bool) -> None:
    assert greedy is (NO_DEFAULTS.applied(SamplingParams(temperature=temperature)).temperature == 0.0)


def test_what_a_request_leaves_open_is_the_models() -> None:
    expected = DecidedSampling(
        temperature=0.6, top_p=0.9, top_k=50, min_p=0.1, repetition_penalty=1.1, max_tokens=20, min_tokens=0
    )
    assert expected == MODEL.applied(SamplingParams(seed=4, ignore_eos=True))


def test_what_a_request_says_wins_also_where_it_says_nothing_special() -> None:
    said: dict[str, Any] = {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 5,
    }
    assert DecidedSampling(**said, min_tokens=0) == MODEL.applied(SamplingParams(**said))


def test_without_defaults_all_tokens_are_sampled_as_the_model_has_them() -> None:
    expected = DecidedSampling(
        temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_tokens=None, min_tokens=0
    )
    assert expected == NO_DEFAULTS.applied(SamplingParams())


def test_the_models_length_limits_whoever_asks_for_more_and_at_least() -> None:
    applied = MODEL.applied(SamplingParams(max_tokens=100, min_tokens=50))
    assert (20, 20) == (applied.max_tokens, applied.min_tokens)


@pytest.mark.parametrize(
    "fields", [{"temperature": 3.0}, {"top_p": 0.0}, {"top_k": -5}, {"repetition_penalty": "high"}, {"max_tokens": 0}]
)
def test_a_default_out_of_range_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingDefaults(**fields)
    assert list(fields) == [caught.value.param]
