import logging
import math
import struct
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from layered_llm.runtime.checkpoint.matrices import WeightFormat
from layered_llm.runtime.checkpoint.stored_tensors import CheckpointError
from layered_llm.runtime.cpu import cpu_opening
from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from layered_llm.runtime.device.device import DeviceError
from layered_llm.runtime.models.gguf_model import GgufModel
from support.gguf_models import random_model, write_gguf
from support.logits import answer
from support.runtime_checkpoints import LLAMA3_ROPE, reference_logits
from support.runtime_options import make_options
from support.simd_kernels import KINDS, Kind, this_machine

PROMPT = [5, 9, 100, 3, 77, 64, 1, 120, 33, 33, 2, 90]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-no-groups": {"num_key_value_heads": 4},
    "llama-biases": {"attention_bias": True, "mlp_bias": True},
    "llama-head-32": {"head_dim": 32},
    "llama-head-80": {"head_dim": 80},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "qwen3-tied": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
}
BLOCKS_OF_32 = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]


def make(path: Path, family: str = "llama", kind: Type = Type.F32, **changes: Any) -> Any:
    settings = dict(FAMILIES[family])
    model = random_model(settings.pop("model_type", "llama"), **settings)
    write_gguf(path, model, kind, **changes)
    return model


def assert_same_logits(path: Path, model: Any, **options: Any) -> None:
    device = open_cpu_device(make_options(path, **options), now_us=lambda: 0)
    output, logits = answer(device, PROMPT, 6)
    expected = reference_logits(model, PROMPT + output[:-1])[len(PROMPT) - 1 :]
    assert 1e-4 > (expected - logits).abs().max().item()
    assert expected.argmax(dim=-1).tolist() == output


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_family_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = make(tmp_path / "m.gguf", family, Type.Q4_1)
    assert_same_logits(tmp_path / "m.gguf", model)


@pytest.mark.parametrize("kind", BLOCKS_OF_32, ids=lambda kind: kind.name)
def test_logits_of_every_type_are_those_of_its_own_numbers(kind: Type, tmp_path: Path) -> None:
    model = make(tmp_path / "m.gguf", "llama", kind)
    assert_same_logits(tmp_path / "m.gguf", model)


MATRICES = {
    "attention": [f"blk.{layer}.attn_{name}.weight" for layer in range(2) for name in "qkv"],
    "output": ["blk.0.attn_output.weight", "blk.1.attn_output.weight"],
    "gate and up": [f"blk.{layer}.ffn_{name}.weight" for layer in range(2) for name in ("gate", "up")],
    "down": ["blk.0.ffn_down.weight", "blk.1.ffn_down.weight"],
    "head": ["output.weight"],
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("names", MATRICES.values(), ids=MATRICES)
@pytest.mark.parametrize("types", [(Type.F16, Type.Q4_0), (Type.Q8_0, Type.F32)], ids=["F16 of Q4_0", "Q8_0 of F32"])
def test_any_matrix_may_have_blocks_beside_others_without(
    names: list[str], types: tuple[Type, Type], kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, others = types
    machine = attrs.evolve(this_machine(), **attrs.asdict(kind))
    monkeypatch.setattr(cpu_opening, "find_support", lambda config: machine)
    model = make(tmp_path / "m.gguf", "llama-head-32", others, kinds=dict.fromkeys(names, one))
    assert_same_logits(tmp_path / "m.gguf", model)


def test_matrices_of_several_types_may_be_merged(tmp_path: Path) -> None:
    kinds = {"blk.0.attn_v.weight": Type.Q8_0, "blk.1.ffn_up.weight": Type.F16}
    model = make(tmp_path / "m.gguf", "qwen3", Type.Q4_0, kinds=kinds)
    assert_same_logits(tmp_path / "m.gguf", model)


def test_k_quants_are_expanded_with_a_word_about_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = random_model("llama", hidden_size=256, intermediate_size=256, initializer_range=0.1)
    rng = np.random.default_rng(0)
    # the library reads these blocks but does not make them: random ones with small scales
    blocks = rng.integers(0, 256, size=(256, 144), dtype=np.uint8)
    blocks[:, :4] = np.full((256, 2), 1e-3, np.float16).view(np.uint8)
    path = tmp_path / "m.gguf"
    write_gguf(path, model, Type.F32, raw={"blk.0.ffn_down.weight": (blocks, Type.Q4_K)})
    with caplog.at_level(logging.INFO):
        assert_same_logits(path, model)
    assert "m.gguf: Q4_K is expanded to fp32" in caplog.text


def test_what_can_be_used_in_place_is_a_view_of_the_file(tmp_path: Path) -> None:
    make(tmp_path / "m.gguf", "qwen2", Type.Q4_1)
    tensors = GgufModel.open(tmp_path / "m.gguf").tensors()
    matrix = tensors["model.layers.0.mlp.down_proj.weight"].read()
    assert (WeightFormat.Q4_1, False, False) == (matrix.format, matrix.data.flags.owndata, matrix.data.flags.writeable)
    assert matrix.data.ctypes.data == tensors["model.layers.0.mlp.down_proj.weight"].read().data.ctypes.data


def test_config_json_says_what_the_metadata_say(tmp_path: Path) -> None:
    make(tmp_path / "m.gguf", "llama-tied", metadata={"context_length": 77})
    config = GgufModel.open(tmp_path / "m.gguf").config_json()
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 77,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": True,
    }
    assert expected == {name: config[name] for name in expected}


def test_frequency_factors_are_what_llama_3_stretches_with(tmp_path: Path) -> None:
    model = random_model("llama", rope_parameters=LLAMA3_ROPE)
    plain = 1.0 / 10_000.0 ** (torch.arange(0, 16, 2) / 16)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    write_gguf(tmp_path / "m.gguf", model, Type.F32, tensors={"rope_freqs.weight": factors})
    assert factors.max() > 2
    assert_same_logits(tmp_path / "m.gguf", model)


LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize(
    "metadata",
    [
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scale_linear": 4.0},
        {"rope.scaling.type": "linear", "rope.scale_linear": 4.0},
        {"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0},
    ],
    ids=str,
)
def test_positions_are_scaled_down_by_every_name_of_the_factor(metadata: dict[str, Any], kernels: str, tmp_path: Path) -> None:
    model = random_model("llama", rope_parameters=LINEAR)
    write_gguf(tmp_path / "m.gguf", model, Type.F32, metadata=metadata)
    assert_same_logits(tmp_path / "m.gguf", model, kernels=kernels)


@pytest.mark.parametrize(
    "metadata",
    [
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {"rope.scaling.type": "none", "rope.scale_linear": 4.0},
        {"rope.scaling.type": "linear"},
        {"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0},
        {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.original_context_length": 8, "rope.scaling.attn_factor": 1.0},
        {"attention.layer_norm_epsilon": 0.1, "attention.scale": 0.25, "attention.value_length": 16, "expert_count": 0},
        {"attention.sliding_window": 0, "rope.freq_base_swa": 3.0, "logit_scale": 1.0, "use_parallel_residual": True},
        {"vocab_size": 7, "rope.dimension_count": 16, "attention.causal": True, "attention.sliding_window_pattern": 6},
    ],
    ids=str,
)
def test_metadata_that_change_nothing_are_no_reason_to_refuse(metadata: dict[str, Any], tmp_path: Path) -> None:
    model = make(tmp_path / "m.gguf", metadata=metadata)
    assert_same_logits(tmp_path / "m.gguf", model)


def test_frequency_factors_and_a_factor_of_all_count_both(tmp_path: Path) -> None:
    model = random_model("llama", rope_parameters=LINEAR | {"factor": 8.0})
    metadata, factors = {"rope.scale_linear": 4.0}, np.full(8, 2.0, np.float32)
    write_gguf(tmp_path / "m.gguf", model, Type.F32, metadata=metadata, tensors={"rope_freqs.weight": factors})
    assert_same_logits(tmp_path / "m.gguf", model)


@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"])
def test_a_number_for_each_layer_is_one_where_all_are_the_same(key: str, tmp_path: Path) -> None:
    model = random_model("llama")
    value = {"attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": 96}[key]
    write_gguf(tmp_path / "m.gguf", model, Type.F32, metadata={key: [value, value]})
    assert_same_logits(tmp_path / "m.gguf", model)
    write_gguf(tmp_path / "n.gguf", model, Type.F32, metadata={key: [value, value + 1]})
    with pytest.raises(CheckpointError, match=rf"llama\.{key} must be one int, but is \[{value}, {value + 1}\]"):
        GgufModel.open(tmp_path / "n.gguf").config()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {"rope.scaling.type": "yarn"}}, "rope scaling 'yarn' is not supported"),
        ({"metadata": {"rope.scaling.type": 3}}, "rope scaling 3 is not supported"),
        ({"metadata": {"rope.scaling.factor": -4.0}}, "factor must be a positive number, got '-4.0'"),
        ({"metadata": {"rope.scale_linear": math.nan}}, "factor must be a positive number, got 'nan'"),
        ({"metadata": {"rope.scale_linear": "4"}}, r"llama\.rope\.scale_linear must be one float, but is '4'"),
        (
            {"metadata": {"rope.scaling.attn_factor": 2.0}},
            r"metadata that are not .*: llama\.rope\.scaling\.attn_factor = 2\.0",
        ),
        ({"metadata": {"rope.scaling.yarn_ext_factor": 1.0}}, r"not supported.*: llama\.rope\.scaling\.yarn_ext_factor = 1\.0"),
        ({"metadata": {"rope.new_scaling": 2.0, "x": 1}}, r"not supported.*: llama\.rope\.new_scaling = 2\.0, llama\.x = 1"),
        ({"metadata": {"logit_scale": 0.5}}, r"not supported.*: llama\.logit_scale = 0\.5"),
        ({"metadata": {"expert_count": 8}}, r"not supported.*: llama\.expert_count = 8"),
        ({"metadata": {"attention.causal": False}}, r"not supported.*: llama\.attention\.causal = False"),
        ({"metadata": {"attention.scale": 0.5}}, r"llama\.attention\.scale = 0\.5 is not supported"),
        (
            {"metadata": {"attention.value_length": 8}},
            r"llama\.attention\.value_length is 8, but only heads of one size",
        ),
        ({"metadata": {"rope.dimension_count": 8}}, r"llama\.rope\.dimension_count is 8, but only heads of one size"),
        ({"metadata": {"attention.sliding_window": 8}}, "sliding_window=8 is not supported below the context of 256"),
        ({"metadata": {"attention.head_count_kv": 0}}, "num_key_value_heads must be a positive integer"),
        ({"metadata": {"attention.layer_norm_rms_epsilon": math.inf}}, "rms_norm_eps must be a positive number"),
        ({"metadata": {"attention.head_count": "many"}}, r"llama\.attention\.head_count must be one int, but is 'many'"),
        ({"metadata": {"attention.head_count": 3}}, r"attn_q\.weight has 64 rows, which are no 3 heads|no multiple of"),
        ({"tensors": {"blk.0.ffn_gate_exps.weight": np.ones((4, 32), np.float32)}}, r"not supported.*: blk\.0\.ffn_gate_exps"),
        (
            {"tensors": {"rope_freqs.weight": np.ones(3, np.float32)}},
            r"rope_freqs\.weight has 3 numbers, but half a head has 8",
        ),
        ({"tensors": {"rope_freqs.weight": np.zeros(8, np.float32)}}, r"rope_freqs\.weight has numbers that are not positive"),
    ],
)
def test_what_cannot_be_executed_exactly_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    make(tmp_path / "m.gguf", **changes)
    with pytest.raises(DeviceError, match=message) as caught:
        open_cpu_device(make_options(tmp_path / "m.gguf"), now_us=lambda: 0)
    assert "\n" not in str(caught.value)


def write_fields(path: Path, architecture: str, **fields: int | list[int]) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in fields.items():
        if isinstance(value, list):
            writer.add_array(key.replace("__", "."), value)
        else:
            writer.add_uint16(key.replace("__", "."), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_another_architecture_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    write_fields(tmp_path / "m.gguf", "phi3")
    with pytest.raises(CheckpointError, match="architecture 'phi3' is not supported in a GGUF file, only llama, qwen2, qwen3"):
        GgufModel.open(tmp_path / "m.gguf")


def test_a_part_of_a_split_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_fields(tmp_path / "m.gguf", "llama", split__count=3)
    with pytest.raises(CheckpointError, match="one of 3 parts of a model: join them"):
        GgufModel.open(tmp_path / "m.gguf")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "m.gguf", metadata={"general.type": "adapter"})
    with pytest.raises(CheckpointError, match=r"general\.type is 'adapter', and only a model can be served"):
        GgufModel.open(tmp_path / "m.gguf")


def test_lists_in_place_of_one_value_are_refused(tmp_path: Path) -> None:
    write_fields(tmp_path / "m.gguf", "llama", split__count=[2, 3])
    with pytest.raises(CheckpointError, match=r"one of \[2, 3\] parts"):
        GgufModel.open(tmp_path / "m.gguf")
    strings = struct.pack("<IIQQ", 9, 8, 1, 5) + b"llama"
    key = struct.pack("<Q", len("general.architecture")) + b"general.architecture"
    (tmp_path / "n.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + strings)
    with pytest.raises(CheckpointError, match=r"architecture \['llama'\] is not supported"):
        GgufModel.open(tmp_path / "n.gguf")


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    write_fields(tmp_path / "m.gguf", "llama", llama__embedding_length=4, llama__attention__head_count=1)
    with pytest.raises(CheckpointError, match=r"lacks the tensor token_embd\.weight"):
        GgufModel.open(tmp_path / "m.gguf").config()


def test_a_broken_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"m\.gguf is not a readable GGUF file"):
        GgufModel.open(tmp_path / "m.gguf")


def test_a_file_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "m.gguf", metadata={"block_count": 3})
    with pytest.raises(DeviceError, match=r"the checkpoint lacks model\.layers\.2\.input_layernorm\.weight"):
        open_cpu_device(make_options(tmp_path / "m.gguf"), now_us=lambda: 0)


def test_the_scripted_device_takes_its_limits_from_a_gguf_file_too(tmp_path: Path) -> None:
    from layered_llm.runtime.opening import open_device

    make(tmp_path / "m.gguf")
    limits = open_device(make_options(tmp_path / "m.gguf", device="scripted"), now_us=lambda: 0).limits
    assert (256, 128) == (limits.context_tokens, limits.vocabulary_size)
