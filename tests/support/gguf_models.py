"""Tiny GGUF models, made from models of transformers with the gguf library's writer, as llama.cpp's converter does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from transformers import AutoConfig, AutoModelForCausalLM

from support.runtime_checkpoints import SIZES

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def random_model(model_type: str, *, seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **(SIZES | settings)), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    return model.eval()


def write_gguf(
    path: Path,
    model: Any,
    kind: Type,
    *,
    kinds: Mapping[str, Type] | None = None,
    metadata: Mapping[str, Any] | None = None,
    tensors: Arrays | None = None,
    raw: Mapping[str, tuple[Any, Type]] | None = None,
) -> None:
    """Writes `model` with its matrices as `kind`, or what `kinds` says of a name in the file, and rounds its weights likewise.

    `metadata` (keys without the architecture) and `tensors` come on top; `raw` has blocks in place of a tensor's own numbers.
    """
    config = model.config
    architecture = config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    _write_config(writer, config, architecture, metadata or {})
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    state = dict(model.state_dict())
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    for name, tensor in state.items():
        stem, _, ending = name.rpartition(".")
        gguf_name = f"{names.get_name(stem)}.{ending}"
        values = tensor.numpy()
        heads = _interleaved_heads(name, config)
        own_kind = Type.F32 if values.ndim == 1 else (kinds or {}).get(gguf_name, kind)
        data = gguf.quantize(_interleaved(values, heads) if heads else values, own_kind)
        data, own_kind = (raw or {}).get(gguf_name, (data, own_kind))
        writer.add_tensor(gguf_name, data, raw_dtype=own_kind)
        exact = gguf.dequantize(data, own_kind)
        tensor.copy_(torch.from_numpy(_in_halves(exact, heads) if heads else exact))
    for extra, values in (tensors or {}).items():
        writer.add_tensor(extra, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_config(writer: Any, config: Any, architecture: str, metadata: Mapping[str, Any]) -> None:
    numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "attention.key_length": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    }
    for key, value in (numbers | dict(metadata)).items():
        name = key if key.startswith("general.") else f"{architecture}.{key}"
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case list():
                writer.add_array(name, value)
            case _:
                writer.add_string(name, value)


def _interleaved_heads(name: str, config: Any) -> int | None:
    if config.model_type != "llama":
        return None
    if "q_proj" in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if "k_proj" in name else None


def _interleaved(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows 0, n/2, 1, n/2 + 1 … of each head of n rows."""
    return values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _in_halves(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    return values.reshape(heads, len(values) // heads // 2, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
