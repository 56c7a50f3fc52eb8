import json
import math
from pathlib import Path
from typing import Any

import pytest

from layered_llm.runtime.model_config import (
    LinearScaling,
    Llama3Scaling,
    ModelConfigError,
    RopeConfig,
    parse_model_config,
    read_config_json,
)

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def test_absent_settings_take_hugging_faces_defaults() -> None:
    config = parse_model_config(RAW)
    assert (4, 16, 2048, 1e-6, RopeConfig(theta=10_000.0, scaling=None), False) == (
        config.kv_heads,
        config.head_dim,
        config.context_tokens,
        config.norm_eps,
        config.rope,
        config.tied_head,
    )


def test_an_explicit_head_size_wins() -> None:
    config = parse_model_config(RAW | {"head_dim": 80, "num_key_value_heads": 2})
    assert (320, 160) == (config.query_size, config.kv_size)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"rope_type": "llama3"}},
        {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"type": "llama3"}},
        {"rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 5e5}},
    ],
)
def test_old_and_new_spellings_of_rope_mean_the_same(settings: dict[str, Any]) -> None:
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_tokens=32)
    assert RopeConfig(theta=5e5, scaling=scaling) == parse_model_config(RAW | settings).rope


def test_positions_may_be_scaled_down() -> None:
    settings = {"rope_theta": 3.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert RopeConfig(theta=3.0, scaling=LinearScaling(factor=2.0)) == parse_model_config(RAW | settings).rope


def test_null_rope_scaling_is_none() -> None:
    assert RopeConfig(theta=3.0, scaling=None) == parse_model_config(RAW | {"rope_theta": 3, "rope_scaling": None}).rope


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type='dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type='yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "factor must be a positive number"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor must be a positive number, got '0'"),
        ({"rope_parameters": [1]}, r"must be an object, got \[1\]"),
        ({"rope_theta": math.nan}, "rope_theta must be a positive number, got 'nan'"),
        ({"rope_theta": 10**400}, "rope_theta must be a positive number, got '1000"),
        ({"sliding_window": "all"}, "sliding_window must be an integer, got 'all'"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers must be a positive integer up to 2147483647, got '2147483648'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method='gptq' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"sliding_window": 1024}, "sliding_window=1024"),
        ({"head_dim": 15}, "head_dim=15 is odd"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"hidden_size": "64"}, "hidden_size must be a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a positive number, got 'small'"),
        ({"architectures": None}, "architectures must name"),
        ({"architectures": ["A", "B"]}, "architectures must name"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        parse_model_config(RAW | settings)


@pytest.mark.parametrize("settings", [{"sliding_window": 4096}, {"sliding_window": 64, "use_sliding_window": False}])
def test_a_window_that_hides_nothing_is_no_window(settings: dict[str, Any]) -> None:
    assert 2048 == parse_model_config(RAW | settings).context_tokens


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="does not exist"):
        read_config_json(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_broken_config_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelConfigError, match=r"config\.json"):
        read_config_json(tmp_path)


def test_a_config_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    assert RAW == read_config_json(tmp_path)
