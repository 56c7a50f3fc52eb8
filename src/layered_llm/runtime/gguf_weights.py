"""Reads a GGUF file of a Llama model as what Hugging Face's format has: config.json, tensors by name, tokenizer metadata.

Must not know: torch, where the result goes, how a tokenizer is built from its metadata.

Quantized blocks become the fp32 numbers that they stand for, so that nothing is lost. llama.cpp keeps the rows of each query
and key head in interleaved order, because its rotary embedding rotates neighbours; they are put back into halves.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs
import gguf
import numpy as np
from numpy.typing import NDArray

from layered_llm.runtime.device import DeviceError

_ARCHITECTURE: Final = "llama"
_OUTER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)
_BLOCK_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attn_norm.weight": "input_layernorm.weight",
        "attn_q.weight": "self_attn.q_proj.weight",
        "attn_k.weight": "self_attn.k_proj.weight",
        "attn_v.weight": "self_attn.v_proj.weight",
        "attn_output.weight": "self_attn.o_proj.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
        "ffn_gate.weight": "mlp.gate_proj.weight",
        "ffn_up.weight": "mlp.up_proj.weight",
        "ffn_down.weight": "mlp.down_proj.weight",
    }
)
_TOKENIZER_PREFIX: Final = "tokenizer."


class GgufError(DeviceError):
    """The file is no GGUF file of a model that can be read."""


@attrs.frozen(eq=False)
class GgufModel:
    """An open GGUF file. Opening takes seconds: the library makes a Python object of every token."""

    _reader: Any

    @classmethod
    def open(cls, path: Path) -> "GgufModel":
        """Raises GgufError where `path` is not a GGUF file of a supported model."""
        try:
            model = cls(gguf.GGUFReader(path))
        except (OSError, ValueError, IndexError) as error:
            raise GgufError(f"{path} is not a readable GGUF file: {error}") from error
        architecture = model._metadata("general.architecture")
        if architecture != _ARCHITECTURE:
            raise GgufError(f"{path}: architecture {architecture!r} is not supported in a GGUF file, only {_ARCHITECTURE!r}")
        scaling = model._metadata("llama.rope.scaling.type")
        if scaling not in {None, "none"}:
            raise GgufError(f"{path}: rope scaling {scaling!r} is not supported in a GGUF file")
        unknown = [tensor.name for tensor in model._reader.tensors if _hugging_face_name(tensor.name) is None]
        if unknown:
            raise GgufError(f"{path}: tensors that are not supported in a GGUF file: {', '.join(unknown[:8])}")
        return model

    def config_json(self) -> dict[str, Any]:
        """What config.json says of this model. Raises GgufError where the metadata lack it."""
        heads, hidden_size = self._number("attention.head_count"), self._number("embedding_length")
        rope_theta = self._metadata("llama.rope.freq_base")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.shapes()["model.embed_tokens.weight"][0],
            "hidden_size": hidden_size,
            "intermediate_size": self._number("feed_forward_length"),
            "num_hidden_layers": self._number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._metadata("llama.attention.head_count_kv") or heads,
            "head_dim": self._metadata("llama.attention.key_length") or hidden_size // heads,
            "hidden_act": "silu",
            "max_position_embeddings": self._number("context_length"),
            "rms_norm_eps": _shortest(self._number("attention.layer_norm_rms_epsilon")),
            "rope_theta": 10_000.0 if rope_theta is None else _shortest(rope_theta),
            "tie_word_embeddings": "lm_head.weight" not in self.shapes(),
            "bos_token_id": self._metadata("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self._metadata("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self._metadata("tokenizer.ggml.padding_token_id"),
            "dtype": "float32",
        }

    def tokenizer_metadata(self) -> dict[str, Any]:
        """Every key of the file that starts with "tokenizer.", with plain Python values."""
        fields = self._reader.fields
        return {name: field.contents() for name, field in fields.items() if name.startswith(_TOKENIZER_PREFIX)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor by its Hugging Face name, in the order of `tensors`."""
        return {
            _hugging_face_name(tensor.name) or tensor.name: tuple(int(length) for length in reversed(tensor.shape))
            for tensor in self._reader.tensors
        }

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Each tensor as fp32, made only when asked for; `shapes` says how many come."""
        heads = {
            "q_proj": self._number("attention.head_count"),
            "k_proj": self._metadata("llama.attention.head_count_kv") or self._number("attention.head_count"),
        }
        for name, tensor in zip(self.shapes(), self._reader.tensors, strict=True):
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            projection = name.split(".")[-2]
            yield name, _rows_in_halves(values, heads[projection]) if projection in heads else values

    def _metadata(self, key: str) -> Any:
        field = self._reader.fields.get(key)
        return None if field is None else field.contents()

    def _number(self, name: str) -> Any:
        value = self._metadata(f"{_ARCHITECTURE}.{name}")
        if not isinstance(value, int | float):
            raise GgufError(f"the GGUF file does not say one number for {_ARCHITECTURE}.{name}: {value!r}")
        return value


def _hugging_face_name(name: str) -> str | None:
    match name.split(".", 2):
        case ["blk", layer, rest] if rest in _BLOCK_NAMES:
            return f"model.layers.{layer}.{_BLOCK_NAMES[rest]}"
        case _:
            return _OUTER_NAMES.get(name)


def _rows_in_halves(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows 0, 2, 4 … of each head first, then rows 1, 3, 5 …"""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _shortest(value: float) -> float:
    """The shortest decimal number that is the same fp32 number: the file stores 1e-05 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))
