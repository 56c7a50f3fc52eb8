import json
import math
from pathlib import Path
from typing import Any

import attrs
import pytest

from layered_llm.runtime.models.config_json import find_config_json
from layered_llm.runtime.models.model_config import (
    ExpertsSpec,
    FullAttention,
    GatedSpec,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    ModelConfigError,
    RopeConfig,
    WindowAttention,
    refuse_layers,
)
from layered_llm.runtime.models.model_files import read_model
from layered_llm.runtime.models.registry import family_of

RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def parse(raw: dict[str, Any]) -> ModelConfig:
    return family_of(raw).parse(raw)


QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 4}


def test_absent_settings_take_hugging_faces_defaults() -> None:
    config = parse(RAW)
    assert (4, 16, 2048, 1e-6, RopeConfig(theta=10_000.0, scaling=None), False) == (
        config.kv_heads,
        config.head_dim,
        config.context_tokens,
        config.norm_eps,
        config.rope,
        config.tied_head,
    )


def test_an_explicit_head_size_wins() -> None:
    config = parse(RAW | {"head_dim": 80, "num_key_value_heads": 2})
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
    assert RopeConfig(theta=5e5, scaling=scaling) == parse(RAW | settings).rope


def test_positions_may_be_scaled_down() -> None:
    settings = {"rope_theta": 3.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert RopeConfig(theta=3.0, scaling=LinearScaling(factor=2.0)) == parse(RAW | settings).rope


def test_null_rope_scaling_is_none() -> None:
    assert RopeConfig(theta=3.0, scaling=None) == parse(RAW | {"rope_theta": 3, "rope_scaling": None}).rope


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_scaling": {"type": "dynamic"}}, "factor must be a positive number"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_parameters": {}}, "rope_type='yarn' is not supported"),
        ({"rope_scaling": "linear"}, "must be an object, got 'linear'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "of 'full_attention' alone are not supported"),
        ({"rope_parameters": {"rope_theta": None}, "rope_theta": 1e4}, "rope_theta must be a positive number, got 'None'"),
        ({"rope_scaling": LLAMA3 | {"type": "llama3", "high_freq_factor": 1.0}}, "high_freq_factor=1.0 must be above low_freq"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type='yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "factor must be a positive number"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor must be a positive number, got '0'"),
        ({"rope_parameters": [1]}, r"must be an object, got \[1\]"),
        ({"rope_theta": math.nan}, "rope_theta must be a positive number, got 'nan'"),
        ({"rope_theta": 10**400}, "rope_theta must be a positive number, got '1000"),
        ({"sliding_window": "all"}, "sliding_window must be a positive integer or null, got 'all'"),
        ({"sliding_window": 0}, "sliding_window must be a positive integer or null, got 0"),
        ({"sliding_window": True}, "sliding_window must be a positive integer or null, got True"),
        (QWEN2 | {"use_sliding_window": 1}, "use_sliding_window must be true or false, got 1"),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": "2"}, "max_window_layers must be an integer, got '2'"),
        (
            QWEN2 | {"layer_types": ["sliding_attention"] * 2},
            "layer_types has sliding_attention, but there",
        ),
        (QWEN2 | {"layer_types": ["full_attention"]}, "layer_types must name one of"),
        (QWEN2 | {"layer_types": ["linear_attention"] * 2}, "layer_types must name one of"),
        ({"layer_types": {"0": "full_attention"}}, "layer_types must name one of"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false, got 'false'"),
        ({"attention_bias": None}, "attention_bias must be true or false, got None"),
        ({"mlp_bias": 0}, "mlp_bias must be true or false, got 0"),
        ({"is_causal": False}, "is_causal=False is not supported"),
        ({"attention_chunk_size": 64}, "attention_chunk_size=64 is not supported"),
        ({"per_layer_config": {"0": {"num_key_value_heads": 1}}}, "per_layer_config=.* is not supported"),
        ({"transformers_weights": "other.safetensors"}, "transformers_weights='other.safetensors' is not supported"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps must be a positive number, got '-1e-06'"),
        ({"rms_norm_eps": None}, "rms_norm_eps must be a positive number, got 'None'"),
        ({"model_type": "gemma"}, "model_type='gemma' is not supported, only llama, mistral, qwen2, qwen3"),
        ({"model_type": ["llama"]}, "model_type=.* is not supported"),
        (
            {"architectures": ["LlamaForSequenceClassification"], "model_type": "llama"},
            "ForSequenceClassification' is not",
        ),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list of names, got 'LlamaForCausalLM'"),
        ({"architectures": [1]}, "architectures must be a list of names"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers=2147483647 is not supported, at most 10000"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers must be a positive integer up to 2147483647, got '2147483648'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method='gptq' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"head_dim": 15}, "head_dim=15 is odd"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"hidden_size": None}, "hidden_size must be a positive integer, got null"),
        ({"hidden_size": True}, "hidden_size must be a positive integer"),
        ({"hidden_size": 64.0}, "hidden_size must be a positive integer"),
        ({"hidden_size": "64"}, "hidden_size must be a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a positive number, got 'small'"),
        ({"architectures": None}, "has no model_type, and architectures does not name exactly one"),
        ({"architectures": ["LlamaForCausalLM", "MistralForCausalLM"]}, "has no model_type, and architectures does not name"),
        ({"architectures": ["A", "B"]}, "architecture 'A' is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        parse(RAW | settings)


@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ({"sliding_window": 64}, [64, 64]),
        (QWEN2 | {"sliding_window": 64}, [None, None]),
        (QWEN2 | {"sliding_window": 64, "use_sliding_window": True}, [None, None]),
        (QWEN2 | {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, [None, 64]),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 0}, [4096, 4096]),
        (QWEN2 | {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}, [None, 4096]),
        ({"architectures": ["MistralForCausalLM"], "num_key_value_heads": 4}, [4096, 4096]),
    ],
)
def test_the_windows_are_those_of_the_class(settings: dict[str, Any], windows: list[int | None]) -> None:
    layers = parse(RAW | settings | {"num_key_value_heads": 4}).layers
    assert [FullAttention() if window is None else WindowAttention(window) for window in windows] == [
        layer.attention for layer in layers
    ]


def test_a_window_is_refused_below_the_context_alone() -> None:
    config = parse(RAW | {"sliding_window": 64})
    refuse_layers(config, 64)
    with pytest.raises(ModelConfigError, match="sliding_window=64 is not supported below the context of 65 tokens"):
        refuse_layers(config, 65)


EXPERTS = ExpertsSpec(experts=8, experts_per_token=2, expert=GatedSpec(intermediate_size=32, has_bias=False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp": EXPERTS}, "layers with experts are not supported, and one has 8"),
        ({"rope": RopeConfig(theta=7.0, scaling=None)}, "layers with several rotary position embeddings are not supported"),
    ],
)
def test_a_layer_that_nothing_computes_is_refused_wherever_it_is(changes: dict[str, Any], message: str) -> None:
    config = parse(RAW)
    refuse_layers(config, 64)
    with pytest.raises(ModelConfigError, match=message):
        refuse_layers(attrs.evolve(config, layers=(config.layers[0], attrs.evolve(config.layers[1], **changes))), 64)


ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 2**31, 10**99, 0.0, -0.5, 1e-320, 1e308, math.nan, math.inf, -math.inf),
    *(
        "",
        "x",
        "4",
        "a\nb",
        "x" * 5000,
        [],
        [1],
        ["a"],
        [[]],
        {},
        {"a": 1},
        {"rope_type": []},
        {"type": "linear", "factor": [1]},
    ),
]
SETTINGS = [
    *("architectures", "model_type", "attention_bias", "attention_chunk_size", "head_dim", "hidden_act", "hidden_size"),
    *("intermediate_size", "is_causal", "layer_types", "max_position_embeddings", "max_window_layers", "mlp_bias"),
    *("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "original_max_position_embeddings"),
    *("partial_rotary_factor", "per_layer_config", "quantization_config", "rms_norm_eps", "rope_parameters", "rope_scaling"),
    *("rope_theta", "sliding_window", "tie_word_embeddings", "transformers_weights", "use_sliding_window", "vocab_size"),
]


@pytest.mark.parametrize("family", [{}, {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True}])
@pytest.mark.parametrize("name", SETTINGS)
def test_any_value_of_a_setting_is_read_or_refused_in_one_line(name: str, family: dict[str, Any]) -> None:
    refusals = [""]
    for value in ODD:
        try:
            parse(RAW | family | {"num_key_value_heads": 2, name: value})
        except ModelConfigError as error:
            refusals.append(str(error))
    assert max(map(len, refusals)) < 400
    assert "\n" not in "".join(refusals)


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="does not exist"):
        read_model(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "\x00", "[" * 100_000, '{"a": ' + "9" * 4001 + "}"])
def test_a_broken_config_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelConfigError, match=r"config\.json"):
        read_model(tmp_path)


def test_a_config_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    assert RAW == find_config_json(tmp_path)
