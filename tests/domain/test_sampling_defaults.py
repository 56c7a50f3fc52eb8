from typing import Any

import pytest

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.sampling import NO_DEFAULTS, SamplingDefaults, SamplingParams

MODEL = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=50, min_p=0.1, repetition_penalty=1.1, max_tokens=20)


def test_what_a_request_leaves_open_is_the_models() -> None:
    expected = SamplingParams(
        temperature=0.6, top_p=0.9, top_k=50, min_p=0.1, repetition_penalty=1.1, max_tokens=20, seed=4, ignore_eos=True
    )
    assert expected == MODEL.applied(SamplingParams(seed=4, ignore_eos=True))


def test_what_a_request_says_wins_also_where_it_says_nothing_special() -> None:
    said = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_tokens=5)
    assert said == MODEL.applied(said)


def test_without_defaults_all_tokens_are_sampled_as_the_model_has_them() -> None:
    expected = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0)
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
