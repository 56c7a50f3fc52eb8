"""Settings of a config.json that are absent, old, new or there twice: what transformers makes of the same files is right."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.mistral.modeling_mistral import MistralRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from layered_llm.runtime.models import rotation_table
from layered_llm.runtime.models.model_config import ModelConfigError, WindowAttention
from layered_llm.runtime.models.registry import FAMILIES, family_of
from support.logits import answer
from support.runtime_checkpoints import LLAMA3_ROPE, make_checkpoint, reference_logits
from support.runtime_options import make_options

ROTATIONS: dict[str, Any] = {
    "llama": LlamaRotaryEmbedding,
    "mistral": MistralRotaryEmbedding,
    "qwen2": Qwen2RotaryEmbedding,
    "qwen3": Qwen3RotaryEmbedding,
}
PROMPT = [3] + [10 + i * 37 % 110 for i in range(60)]
LINEAR = {"rope_type": "linear", "factor": 4.0}
UNSCALED = {"rope_type": "default", "rope_theta": 77.0}
NO_WINDOW = {"model_type": "mistral", "sliding_window": None}
ABSENT = object()
"""Of a setting that is taken out of the config.json."""
WINDOW = {"use_sliding_window": True, "sliding_window": 8}

SERVED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an old rope_scaling beside rope_parameters": ({}, {"rope_scaling": LINEAR}),
    "an old rope_scaling beside another theta": ({"rope_parameters": UNSCALED}, {"rope_scaling": LINEAR}),
    "an empty rope_scaling": ({"rope_parameters": LINEAR | {"rope_theta": 77.0}}, {"rope_scaling": {}}),
    "old names alone": ({}, {"rope_parameters": ABSENT, "rope_theta": 77.0, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    "new names alone": ({}, {"rope_parameters": LINEAR | {"rope_theta": 77.0}}),
    "theta inside and beside": ({}, {"rope_parameters": LINEAR | {"rope_theta": 77.0}, "rope_theta": 500.0}),
    "theta beside": ({}, {"rope_parameters": LINEAR, "rope_theta": 77.0}),
    "theta nowhere": ({}, {"rope_parameters": ABSENT}),
    "rope_type and type": ({}, {"rope_parameters": LINEAR | {"type": "default", "rope_theta": 77.0}}),
    "a factor that the type does not read": (
        {},
        {"rope_parameters": UNSCALED | {"factor": 4.0}},
    ),
    "dynamic": ({}, {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 77.0}}),
    "null rotary factors": ({}, {"partial_rotary_factor": None}),
    "llama3 with its context beside it": ({}, {"rope_parameters": LLAMA3_ROPE, "original_max_position_embeddings": 64}),
    "llama3 without a context": (
        {},
        {"rope_parameters": {name: value for name, value in LLAMA3_ROPE.items() if not name.startswith("original")}},
    ),
    "no architectures": ({}, {"architectures": ABSENT}),
    "null architectures": ({}, {"architectures": None}),
    "two architectures": ({}, {"architectures": ["LlamaModel", "LlamaForCausalLM"]}),
    "architectures of another class": ({}, {"architectures": ["MistralForCausalLM"]}),
    "another name of the activation": ({}, {"hidden_act": "swish"}),
    "no epsilon": ({}, {"rms_norm_eps": ABSENT}),
    "an epsilon of zero": ({}, {"rms_norm_eps": 0.0}),
    "no kv heads in Llama": ({"num_key_value_heads": 4}, {"num_key_value_heads": ABSENT}),
    "no kv heads in Mistral": (
        {"model_type": "mistral", "num_attention_heads": 8, "num_key_value_heads": 8, "sliding_window": None},
        {"num_key_value_heads": ABSENT},
    ),
    "null kv heads in Qwen2": ({"model_type": "qwen2", "num_key_value_heads": 4}, {"num_key_value_heads": None}),
    "biases in Mistral's config": (
        {"model_type": "mistral", "sliding_window": None},
        {"attention_bias": True, "mlp_bias": True},
    ),
    "no window in Mistral's config": ({"model_type": "mistral"}, {"sliding_window": ABSENT}),
    "a window of Qwen2 that is not asked for": ({"model_type": "qwen2"}, {"sliding_window": 8, "use_sliding_window": ABSENT}),
    "a window of Qwen2 in no layer": ({"model_type": "qwen2"}, WINDOW | {"max_window_layers": 2, "layer_types": ABSENT}),
    "a window of Qwen2 that no layer names": ({"model_type": "qwen2"}, WINDOW | {"layer_types": ["full_attention"] * 2}),
    "no window in Qwen3's config": ({"model_type": "qwen3", "head_dim": 32}, {"sliding_window": ABSENT, "layer_types": ABSENT}),
    "no head size in Qwen3": ({"model_type": "qwen3", "head_dim": 128}, {"head_dim": ABSENT}),
    "no head size in Llama": ({}, {"head_dim": ABSENT}),
    "null head size in Qwen2": ({"model_type": "qwen2"}, {"head_dim": ABSENT}),
}


def edit(directory: Path, changes: dict[str, Any]) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ABSENT}))


def assert_as_transformers(directory: Path, kernels: str, prompt: list[int] = PROMPT, **options: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    device = open_cpu_device(make_options(directory, kernels=kernels, **options), now_us=lambda: 0)
    output, logits = answer(device, prompt, 8)
    expected = reference_logits(model, prompt + output[:-1])[len(prompt) - 1 :]
    assert expected.argmax(dim=-1).tolist() == output
    assert 2e-4 > (expected - logits).abs().max().item()


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("case", SERVED)
def test_what_transformers_serves_is_served_with_its_logits(case: str, kernels: str, tmp_path: Path) -> None:
    made, changes = SERVED[case]
    make_checkpoint(tmp_path, **made)
    edit(tmp_path, changes)
    assert_as_transformers(tmp_path, kernels)


def test_the_cases_of_scaling_differ_from_no_scaling(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path)
    edit(tmp_path, {"rope_scaling": LINEAR})
    scaled = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert 0.1 < (reference_logits(model, PROMPT) - reference_logits(scaled, PROMPT)).abs().max().item()


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2"])
def test_a_window_that_holds_the_served_context_changes_nothing(model_type: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, model_type=model_type)
    edit(tmp_path, WINDOW | {"sliding_window": 32, "max_window_layers": 0, "layer_types": ABSENT})
    assert_as_transformers(tmp_path, "auto", PROMPT[:20], context_override=32)
    with pytest.raises(ModelConfigError, match=r"sliding_window=32 is not supported below the context of 33 tokens"):
        open_cpu_device(make_options(tmp_path, context_override=33), now_us=lambda: 0)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("head", ["other", "same", "alone"])
def test_a_head_in_the_file_counts_before_a_config_that_ties_it(head: str, kernels: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, tie_word_embeddings=True)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding.flip(0).contiguous() if head == "other" else embedding.clone()
    if head == "alone":
        del tensors["model.embed_tokens.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    assert_as_transformers(tmp_path, kernels)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_defaults_are_those_of_transformers_classes(model_type: str) -> None:
    config = AutoConfig.for_model(model_type).to_dict()
    if model_type.startswith("qwen"):
        config["sliding_window"] = AutoConfig.for_model(model_type, use_sliding_window=True).sliding_window
    heads = config["num_attention_heads"]
    made = {"head_dim": config["hidden_size"] // heads, "num_key_value_heads": heads, "sliding_window": None}
    own = FAMILIES[model_type].defaults
    assert {name: config.get(name, made.get(name)) for name in own} == {
        name: made[name] if value is None else value for name, value in own.items()
    }


ROPE_VALUES: dict[str, list[Any]] = {
    "rope_type": ["default", "linear", "llama3", "dynamic"],
    "type": ["default", "linear", "llama3"],
    "factor": [1.0, 2.0, 4, 8.0],
    "rope_theta": [77.0, 500],
    "low_freq_factor": [1.0],
    "high_freq_factor": [4.0],
    "original_max_position_embeddings": [32, 64],
    "partial_rotary_factor": [1.0],
    "attention_factor": [1.0],
    "mrope_section": [[1, 2]],
    "finetuned": [True],
}
VALUES: dict[str, list[Any]] = {
    "rope_theta": [55.0, 300],
    "partial_rotary_factor": [1.0, None],
    "original_max_position_embeddings": [16, 128],
    "max_position_embeddings": [256],
    "sliding_window": [None, 8, 4096],
    "use_sliding_window": [True, False],
    "max_window_layers": [0, 1, 2, 28],
    "layer_types": [None, ["full_attention"] * 2],
    "head_dim": [32],
    "num_key_value_heads": [2, 4],
    "tie_word_embeddings": [True, False],
    "rms_norm_eps": [1e-5],
}
SIZES_ALONE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def some_of(chance: random.Random, values: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: chance.choice(choices) for name, choices in values.items() if chance.random() < 0.5}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_any_mixture_of_old_and_new_settings_means_what_transformers_makes_of_it(model_type: str) -> None:
    chance, compared = random.Random(0), 0
    for _ in range(200):
        ropes = {name: some_of(chance, ROPE_VALUES) for name in ("rope_scaling", "rope_parameters") if chance.random() < 0.6}
        raw = {"model_type": model_type, **SIZES_ALONE, **some_of(chance, VALUES), **ropes}
        try:
            config = type(AutoConfig.for_model(model_type)).from_dict(json.loads(json.dumps(raw)))
            inverse_frequencies = ROTATIONS[model_type](config).inv_freq
        except (KeyError, ZeroDivisionError):
            with pytest.raises(ModelConfigError):
                family_of(raw).parse(raw)
            continue
        own = family_of(raw).parse(raw)
        assert config.num_key_value_heads == own.kv_heads, raw
        assert (getattr(config, "head_dim", None) or 16) == own.head_dim, raw
        assert (config.max_position_embeddings, config.rms_norm_eps) == (own.context_tokens, own.norm_eps), raw
        assert config.tie_word_embeddings is own.tied_head, raw
        frequencies = torch.from_numpy(rotation_table.inverse_frequencies(own.rope, own.head_dim))
        torch.testing.assert_close(frequencies, inverse_frequencies.double(), rtol=2e-6, atol=0, msg=str(raw))
        types = config.layer_types if model_type.startswith("qwen") else ["sliding_attention"] * own.layer_count
        window = getattr(config, "sliding_window", None)
        assert [None if each == "full_attention" else window for each in types] == [
            layer.attention.window_tokens if isinstance(layer.attention, WindowAttention) else None for layer in own.layers
        ], raw
        compared += 1
    assert compared > 100
