"""A GGUF file of the Llama or Qwen family, as what Hugging Face's format has: a configuration, and tensors by name.

Must not know: torch, how the file's bytes are parsed, what becomes of the weights.

Names of metadata and tensors: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. llama.cpp rotates neighbouring rows of
a head where transformers rotates its two halves, and its converter interleaves the rows of queries and keys for the
architecture "llama"; they are put back into halves when they are read.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.formats.gguf import GgufError, GgufFile, GgufTensor
from layered_llm.runtime.matrices import WeightFormat, WeightMatrix, encoded
from layered_llm.runtime.model_config import FrequencyFactors, ModelConfig, ModelConfigError, RopeConfig, parse_model_config
from layered_llm.runtime.stored_tensors import CheckpointError, MappedRange, StoredTensor, weight_format

_LOG: Final = logging.getLogger(__name__)
_CLASSES: Final = MappingProxyType({"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"})
_INTERLEAVED: Final = "llama"
"""The architecture whose query and key rows are interleaved."""
_OUTER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)
_BLOCK_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_FREQUENCY_FACTORS: Final = "rope_freqs.weight"
_NAMES_SHOWN: Final = 8
_VALUE_SHOWN: Final = 80


@attrs.frozen(eq=False)
class GgufModel:
    """An open GGUF file."""

    _file: GgufFile
    _architecture: str

    @classmethod
    def open(cls, path: Path) -> "GgufModel":
        """Raises CheckpointError where `path` is not a GGUF file of a supported model."""
        try:
            file = GgufFile.open(path)
            architecture, parts = file.get("general.architecture"), file.get("split.count")
        except GgufError as error:
            raise CheckpointError(str(error)) from error
        if not isinstance(architecture, str) or architecture not in _CLASSES:
            raise CheckpointError(
                f"{path}: architecture {_told(architecture)} is not supported in a GGUF file, only {', '.join(_CLASSES)}"
            )
        if parts not in (None, 0, 1):
            raise CheckpointError(
                f"{path} is one of {_told(parts)} parts of a model: join them with 'llama-gguf-split --merge' first"
            )
        unknown = [name for name in file.tensors if name != _FREQUENCY_FACTORS and _hugging_face_name(name) is None]
        if unknown:
            shown = ", ".join(unknown[:_NAMES_SHOWN]) + (" …" if len(unknown) > _NAMES_SHOWN else "")
            raise CheckpointError(f"{path}: tensors that are not supported in a GGUF file: {shown}")
        return cls(file, architecture)

    def config_json(self) -> dict[str, Any]:
        """What a config.json would say of this model. Raises CheckpointError where the metadata lack it."""
        heads, hidden_size = self._number("attention.head_count", int), self._number("embedding_length", int)
        head_dim = self._optional("attention.key_length", int) or hidden_size // max(heads, 1)
        return {
            "architectures": [_CLASSES[self._architecture]],
            "vocab_size": self._embedding_rows(),
            "hidden_size": hidden_size,
            "intermediate_size": self._number("feed_forward_length", int),
            "num_hidden_layers": self._number("block_count", int),
            "num_attention_heads": heads,
            "num_key_value_heads": self._optional("attention.head_count_kv", int) or heads,
            "head_dim": head_dim,
            "max_position_embeddings": self._number("context_length", int),
            "sliding_window": self._optional("attention.sliding_window", int),
            "rms_norm_eps": _shortest(self._number("attention.layer_norm_rms_epsilon", float)),
            "rope_parameters": self._rope(head_dim),
            "attention_bias": self._architecture != "qwen2" and "blk.0.attn_q.bias" in self._file.tensors,
            "mlp_bias": "blk.0.ffn_gate.bias" in self._file.tensors,
            "tie_word_embeddings": "output.weight" not in self._file.tensors,
        }

    def config(self) -> ModelConfig:
        """Raises CheckpointError and ModelConfigError for what is missing, contradictory or not supported."""
        try:
            config = parse_model_config(self.config_json())
        except ModelConfigError as error:
            raise ModelConfigError(f"{self._file.path}: its metadata do not make a model: {error}") from error
        factors = self._file.tensors.get(_FREQUENCY_FACTORS)
        if factors is None:
            return config
        numbers = self._stored(_FREQUENCY_FACTORS, factors, None).read().dequantized().reshape(-1)
        if len(numbers) != config.head_dim // 2:
            raise CheckpointError(
                f"{self._file.path}: {_FREQUENCY_FACTORS} has {len(numbers)} numbers, but half a head has "
                f"{config.head_dim // 2}"
            )
        scaling = FrequencyFactors(factors=tuple(map(float, numbers)))
        return attrs.evolve(config, rope=RopeConfig(theta=config.rope.theta, scaling=scaling))

    def tensors(self) -> dict[str, StoredTensor]:
        """All weights by their Hugging Face names, not read yet."""
        heads = self._interleaved_heads()
        found: dict[str, StoredTensor] = {}
        for name, tensor in self._file.tensors.items():
            full_name = _hugging_face_name(name)
            if full_name is not None:
                found[full_name] = self._stored(name, tensor, heads.get(name.split(".")[-2]))
        self._log_expansion()
        return found

    def _stored(self, name: str, tensor: GgufTensor, interleaved_heads: int | None) -> StoredTensor:
        place = MappedRange(self._file.mapping, tensor.begin, tensor.size_bytes)
        kind = weight_format(tensor.type.name)
        read = partial(_expanded, name, tensor, place) if kind is None else partial(place.matrix, kind, tensor.shape)
        if interleaved_heads is not None:
            read = partial(_in_halves, name, read, tensor.shape, interleaved_heads)
        return StoredTensor(type_name=tensor.type.name, shape=tensor.shape, read=read, forget=place.forget)

    def _interleaved_heads(self) -> dict[str, int]:
        """How many heads the rows of these matrices are, where they are interleaved."""
        if self._architecture != _INTERLEAVED:
            return {}
        heads = self._number("attention.head_count", int)
        return {"attn_q": heads, "attn_k": self._optional("attention.head_count_kv", int) or heads}

    def _embedding_rows(self) -> int:
        tensor = self._file.tensors.get("token_embd.weight")
        if tensor is None:
            raise CheckpointError(f"{self._file.path} lacks the tensor token_embd.weight")
        return tensor.shape[0]

    def _rope(self, head_dim: int) -> dict[str, Any]:
        theta = self._optional("rope.freq_base", float)
        rotated = self._optional("rope.dimension_count", int)
        return {
            "rope_theta": 10_000.0 if theta is None else _shortest(theta),
            "partial_rotary_factor": 1.0 if rotated is None else rotated / max(head_dim, 1),
            **self._scaling(),
        }

    def _scaling(self) -> dict[str, Any]:
        kind = self._metadata("rope.scaling.type")
        match kind:
            case None | "none":
                return {}
            case "linear":
                return {"rope_type": "linear", "factor": self._number("rope.scaling.factor", float)}
            case _:
                raise CheckpointError(f"{self._file.path}: rope scaling {_told(kind)} is not supported in a GGUF file")

    def _log_expansion(self) -> None:
        kinds = sorted({tensor.type.name for tensor in self._file.tensors.values() if weight_format(tensor.type.name) is None})
        if kinds:
            _LOG.info("%s: %s is expanded to fp32: exact, but larger", self._file.path.name, ", ".join(kinds))

    def _metadata(self, name: str) -> Any:
        try:
            return self._file.get(f"{self._architecture}.{name}")
        except GgufError as error:
            raise CheckpointError(str(error)) from error

    def _optional(self, name: str, kind: type[int] | type[float]) -> Any:
        value = self._metadata(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise CheckpointError(
                f"{self._file.path}: {self._architecture}.{name} must be one {kind.__name__}, but is {_told(value)}"
            )
        return value

    def _number(self, name: str, kind: type[int] | type[float]) -> Any:
        value = self._optional(name, kind)
        if value is None:
            raise CheckpointError(f"{self._file.path} lacks {self._architecture}.{name}")
        return value


def _hugging_face_name(name: str) -> str | None:
    match name.split("."):
        case ["blk", layer, rest, "weight" | "bias" as kind] if rest in _BLOCK_NAMES:
            return f"model.layers.{layer}.{_BLOCK_NAMES[rest]}.{kind}"
        case _:
            return _OUTER_NAMES.get(name)


def _expanded(name: str, tensor: GgufTensor, place: MappedRange) -> WeightMatrix:
    """Blocks that nothing computes with as they are, as the library dequantizes them."""
    import gguf  # noqa: PLC0415 - slow to import, and most files have no such blocks

    kind = gguf.GGMLQuantizationType[tensor.type.name]
    try:
        numbers: NDArray[np.float32] = gguf.dequantize(place.bytes().reshape(-1, tensor.type.block_bytes), kind)
    except NotImplementedError:
        raise CheckpointError(f"tensor {name} is {tensor.type.name}, which is not supported") from None
    place.forget()
    return encoded(numbers.reshape(-1, tensor.shape[-1]), WeightFormat.F32)


def _in_halves(name: str, read: Callable[[], WeightMatrix], shape: tuple[int, ...], heads: int) -> WeightMatrix:
    """Rows 0, 2, 4 … of each head first, then rows 1, 3, 5 …; of a bias, which is one row, its numbers."""
    if shape[0] % (2 * heads):
        raise CheckpointError(f"tensor {name} has {shape[0]} rows, which are no {heads} heads of pairs")
    order = np.arange(shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    matrix = read()
    return encoded(matrix.dequantized()[:, order], WeightFormat.F32) if len(shape) == 1 else matrix.with_rows(order)


def _told(value: object) -> str:
    """A value of the file in a message of one line."""
    return repr(value)[:_VALUE_SHOWN]


def _shortest(value: float) -> float:
    """The shortest decimal number that is the same fp32 number: the file stores 1e-05 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))
