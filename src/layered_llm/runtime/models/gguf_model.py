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
from layered_llm.runtime.checkpoint.gguf_keys import changing_keys
from layered_llm.runtime.checkpoint.matrices import WeightFormat, WeightMatrix, encoded
from layered_llm.runtime.checkpoint.stored_tensors import CheckpointError, MappedRange, StoredTensor, listed, weight_format
from layered_llm.runtime.models.config_json import shown
from layered_llm.runtime.models.model_config import FrequencyFactors, LinearScaling, ModelConfig, ModelConfigError, RopeConfig
from layered_llm.runtime.models.registry import FAMILIES, Family

_LOG: Final = logging.getLogger(__name__)
_ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
"""Each is named like the `model_type` of its family."""
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


@attrs.frozen(eq=False)
class GgufModel:
    """An open GGUF file."""

    _file: GgufFile
    _architecture: str
    _metadata: Mapping[str, Any]
    """Those of the architecture, without its name."""

    @classmethod
    def open(cls, path: Path) -> "GgufModel":
        """Raises CheckpointError where `path` is not a GGUF file of a supported model."""
        try:
            file = GgufFile.open(path)
            architecture, parts = file.get("general.architecture"), file.get("split.count")
            purpose, prefix = file.get("general.type"), f"{architecture}."
            metadata = {key.removeprefix(prefix): file.get(key) for key in file.keys if key.startswith(prefix)}
        except GgufError as error:
            raise CheckpointError(str(error)) from error
        if architecture not in _ARCHITECTURES:
            raise CheckpointError(
                f"{path}: architecture {shown(architecture)} is not supported in a GGUF file, only {', '.join(_ARCHITECTURES)}"
            )
        if parts not in (None, 0, 1):
            raise CheckpointError(
                f"{path} is one of {shown(parts)} parts of a model: join them with 'llama-gguf-split --merge' first"
            )
        if purpose not in (None, "model"):
            raise CheckpointError(f"{path}: general.type is {shown(purpose)}, and only a model can be served")
        unknown = [name for name in file.tensors if name != _FREQUENCY_FACTORS and _hugging_face_name(name) is None]
        if unknown:
            raise CheckpointError(f"{path}: tensors that are not supported in a GGUF file: {listed(unknown)}")
        model = cls(file, architecture, metadata)
        model._refuse_unread_metadata()
        return model

    @property
    def family(self) -> Family:
        return FAMILIES[self._architecture]

    def config_json(self) -> dict[str, Any]:
        """What a config.json would say of this model. Raises CheckpointError where the metadata lack it."""
        heads, hidden_size = self._number("attention.head_count", int), self._number("embedding_length", int)
        head_dim = self._optional("attention.key_length", int, hidden_size // max(heads, 1))
        window = self._optional("attention.sliding_window", int) or None
        return {
            "architectures": [self.family.architecture],
            "model_type": self._architecture,
            "vocab_size": self._embedding_rows(),
            "hidden_size": hidden_size,
            "intermediate_size": self._number("feed_forward_length", int),
            "num_hidden_layers": self._number("block_count", int),
            "num_attention_heads": heads,
            "num_key_value_heads": self._optional("attention.head_count_kv", int, heads),
            "head_dim": head_dim,
            "max_position_embeddings": self._number("context_length", int),
            "sliding_window": window,
            "use_sliding_window": window is not None,
            "max_window_layers": 0,
            "rms_norm_eps": _shortest(self._number("attention.layer_norm_rms_epsilon", float)),
            "rope_parameters": self._rope(),
            "attention_bias": self._architecture != "qwen2" and "blk.0.attn_q.bias" in self._file.tensors,
            "mlp_bias": "blk.0.ffn_gate.bias" in self._file.tensors,
            "tie_word_embeddings": "output.weight" not in self._file.tensors,
        }

    def config(self) -> ModelConfig:
        """Raises CheckpointError and ModelConfigError for what is missing, contradictory or not supported."""
        try:
            config = self.family.parse(self.config_json())
        except ModelConfigError as error:
            raise ModelConfigError(f"{self._file.path}: its metadata do not make a model: {error}") from error
        self._check_head(config.head_dim)
        factors = self._file.tensors.get(_FREQUENCY_FACTORS)
        if factors is None:
            return config
        rope = self._with_factors(config, factors)
        return attrs.evolve(config, layers=tuple(attrs.evolve(layer, rope=rope) for layer in config.layers))

    def _with_factors(self, config: ModelConfig, tensor: GgufTensor) -> RopeConfig:
        """Each frequency divided by its own factor, and by that of all."""
        numbers = self._stored(_FREQUENCY_FACTORS, tensor, None).read().dequantized().reshape(-1)
        if len(numbers) != config.head_dim // 2:
            raise CheckpointError(
                f"{self._file.path}: {_FREQUENCY_FACTORS} has {len(numbers)} numbers, but half a head has "
                f"{config.head_dim // 2}"
            )
        if not (np.isfinite(numbers) & (numbers > 0)).all():
            raise CheckpointError(f"{self._file.path}: {_FREQUENCY_FACTORS} has numbers that are not positive")
        scaling = config.rope.scaling
        common = np.float32(scaling.factor if isinstance(scaling, LinearScaling) else 1.0)
        return RopeConfig(theta=config.rope.theta, scaling=FrequencyFactors(factors=tuple(map(float, numbers * common))))

    def _check_head(self, head_dim: int) -> None:
        """Values as long as keys, all of a head rotated, and its products scaled as always."""
        scale = self._optional("attention.scale", float)
        if scale and np.float32(scale) != np.float32(head_dim**-0.5):
            raise CheckpointError(f"{self._file.path}: {self._architecture}.attention.scale = {scale} is not supported")
        for name in ("attention.value_length", "rope.dimension_count"):
            length = self._optional(name, int, head_dim)
            if length != head_dim:
                raise CheckpointError(
                    f"{self._file.path}: {self._architecture}.{name} is {length}, but only heads of one size, here "
                    f"{head_dim}, are supported"
                )

    def _refuse_unread_metadata(self) -> None:
        unread = list(changing_keys(self._metadata))
        if unread:
            values = [f"{self._architecture}.{key} = {shown(self._metadata[key])}" for key in unread]
            raise CheckpointError(f"{self._file.path}: metadata that are not supported in a GGUF file: {listed(values)}")

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
        return {"attn_q": heads, "attn_k": self._optional("attention.head_count_kv", int, heads)}

    def _embedding_rows(self) -> int:
        tensor = self._file.tensors.get("token_embd.weight")
        if tensor is None:
            raise CheckpointError(f"{self._file.path} lacks the tensor token_embd.weight")
        return tensor.shape[0]

    def _rope(self) -> dict[str, Any]:
        """As llama.cpp: scaling without a type is linear, and the older name of the factor counts if there is no newer one."""
        theta = self._optional("rope.freq_base", float)
        kind, factor = self._metadata.get("rope.scaling.type"), self._optional("rope.scaling.factor", float)
        older = self._optional("rope.scale_linear", float)
        if kind not in (None, "none", "linear"):
            raise CheckpointError(f"{self._file.path}: rope scaling {shown(kind)} is not supported in a GGUF file")
        factor = older if factor is None else factor
        scaling = {"rope_type": "linear", "factor": _shortest(factor)} if factor and kind != "none" else {}
        return {"rope_theta": 10_000.0 if theta is None else _shortest(theta), **scaling}

    def _log_expansion(self) -> None:
        kinds = sorted({tensor.type.name for tensor in self._file.tensors.values() if weight_format(tensor.type.name) is None})
        if kinds:
            _LOG.info("%s: %s is expanded to fp32: exact, but larger", self._file.path.name, ", ".join(kinds))

    def _optional(self, name: str, kind: type[int] | type[float], default: int | None = None) -> Any:
        """A number, or one for each layer that are all the same."""
        value = self._metadata.get(name)
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise CheckpointError(
                f"{self._file.path}: {self._architecture}.{name} must be one {kind.__name__}, but is {shown(value)}"
            )
        return default if value is None else value

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


def _shortest(value: float) -> float:
    """The shortest decimal number that is the same fp32 number: the file stores 1e-05 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))
