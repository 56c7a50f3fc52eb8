"""A model directory's config.json, read into what a decoder needs; what cannot be executed exactly is refused by name.

Must not know: torch, weights, which architectures have an implementation.

Names and defaults are those of Hugging Face's configuration classes. Version 5 of transformers writes `rope_parameters` where
earlier ones wrote `rope_theta` and `rope_scaling`; both are read.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from layered_llm.formats.untrusted_files import UnreadableFile, read_json
from layered_llm.runtime.device import DeviceError

CONFIG_FILE: Final = "config.json"
_DEFAULT_CONTEXT_TOKENS: Final = 2048
_DEFAULT_ROPE_THETA: Final = 10_000.0
_LARGEST_SIZE: Final = 2**31 - 1
_VALUE_SHOWN: Final = 80


class ModelConfigError(DeviceError):
    """The model's config.json is missing, broken, or asks for something that is not supported."""


@attrs.frozen(kw_only=True)
class Llama3Scaling:
    """Frequencies stretched by wavelength (The Llama 3 Herd of Models, 2024, and Meta's published code)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@attrs.frozen(kw_only=True)
class LinearScaling:
    """All positions divided by `factor` (Chen et al., Extending Context Window via Positional Interpolation, 2023)."""

    factor: float


@attrs.frozen(kw_only=True)
class FrequencyFactors:
    """Each frequency divided by a number of its own, as a GGUF file has them for what Llama3Scaling stretches."""

    factors: tuple[float, ...]
    """One for each pair of a head."""


RopeScaling = Llama3Scaling | LinearScaling | FrequencyFactors


@attrs.frozen(kw_only=True)
class RopeConfig:
    """Rotary position embedding over the whole head (Su et al., RoFormer, 2021)."""

    theta: float
    scaling: RopeScaling | None


@attrs.frozen(kw_only=True)
class ModelConfig:
    """Shape of a decoder-only transformer with grouped-query attention and a gated MLP."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary_size: int
    context_tokens: int
    norm_eps: float
    rope: RopeConfig
    attention_bias: bool
    mlp_bias: bool
    tied_head: bool

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


def read_config_json(model_dir: Path) -> Mapping[str, Any]:
    """The parsed config.json of `model_dir`. Raises ModelConfigError where there is none, or it is no JSON object."""
    path = model_dir / CONFIG_FILE
    try:
        raw = read_json(path)
    except UnreadableFile as error:
        raise ModelConfigError(str(error)) from error
    if raw is None:
        raise ModelConfigError(f"{path} does not exist")
    return raw


def parse_model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Raises ModelConfigError, naming the setting, for what is missing, contradictory or not supported."""
    _refuse_unsupported(raw)
    heads = read_size(raw, "num_attention_heads")
    hidden_size = read_size(raw, "hidden_size")
    config = ModelConfig(
        architecture=_architecture(raw),
        hidden_size=hidden_size,
        intermediate_size=read_size(raw, "intermediate_size"),
        layers=read_size(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=read_size(raw, "num_key_value_heads", default=heads),
        head_dim=read_size(raw, "head_dim", default=hidden_size // heads),
        vocabulary_size=read_size(raw, "vocab_size"),
        context_tokens=read_size(raw, "max_position_embeddings", default=_DEFAULT_CONTEXT_TOKENS),
        norm_eps=_number(raw, "rms_norm_eps", default=1e-6),
        rope=_rope(raw),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
    )
    if config.heads % config.kv_heads:
        raise ModelConfigError(f"num_attention_heads={config.heads} is no multiple of num_key_value_heads={config.kv_heads}")
    if config.head_dim % 2:
        raise ModelConfigError(f"head_dim={config.head_dim} is odd, and rotary position embedding needs pairs")
    return config


def read_size(raw: Mapping[str, Any], name: str, *, default: int | None = None) -> int:
    """The positive 32-bit integer `name`; absent and null mean `default`. Raises ModelConfigError for anything else."""
    value = raw.get(name)
    value = default if value is None else value
    if value is None:
        raise ModelConfigError(f"{CONFIG_FILE} lacks {name}")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST_SIZE:
        raise ModelConfigError(
            f"{CONFIG_FILE}: {name} must be a positive integer up to {_LARGEST_SIZE}, got {str(value)[:_VALUE_SHOWN]!r}"
        )
    return value


def _number(raw: Mapping[str, Any], name: str, *, default: float | None = None) -> float:
    value = raw.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ModelConfigError(f"{CONFIG_FILE}: {name} must be a positive number, got {str(value)[:_VALUE_SHOWN]!r}")
    return float(value)


def _architecture(raw: Mapping[str, Any]) -> str:
    match raw.get("architectures"):
        case [str() as name]:
            return name
        case other:
            raise ModelConfigError(f"{CONFIG_FILE}: architectures must name exactly one model class, got {other!r}")


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    quantization = raw.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise ModelConfigError(f"quantization_config with quant_method={method!r} is not supported")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelConfigError(f"hidden_act={activation!r} is not supported, only 'silu'")
    window, context = raw.get("sliding_window"), read_size(raw, "max_position_embeddings", default=_DEFAULT_CONTEXT_TOKENS)
    if window is not None and not isinstance(window, int):
        raise ModelConfigError(f"{CONFIG_FILE}: sliding_window must be an integer, got {window!r}")
    if window is not None and window < context and raw.get("use_sliding_window", True):
        raise ModelConfigError(f"sliding_window={window!r} below max_position_embeddings={context} is not supported")


def _rope(raw: Mapping[str, Any]) -> RopeConfig:
    parameters: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise ModelConfigError(f"{CONFIG_FILE}: rope_parameters or rope_scaling must be an object, got {parameters!r}")
    theta = parameters.get("rope_theta", raw.get("rope_theta", _DEFAULT_ROPE_THETA))
    rotary_factor = parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    if rotary_factor != 1.0:
        raise ModelConfigError(f"partial_rotary_factor={rotary_factor!r} is not supported, only 1.0")
    scaling: RopeScaling | None
    match parameters.get("rope_type", parameters.get("type", "default")):
        case "default":
            scaling = None
        case "linear":
            scaling = LinearScaling(factor=_number(parameters, "factor"))
        case "llama3":
            scaling = _llama3_scaling(parameters)
        case other:
            raise ModelConfigError(f"rope_type={other!r} is not supported, only 'default', 'linear' and 'llama3'")
    return RopeConfig(theta=_number({"rope_theta": theta}, "rope_theta"), scaling=scaling)


def _llama3_scaling(parameters: Mapping[str, Any]) -> Llama3Scaling:
    return Llama3Scaling(
        factor=_number(parameters, "factor"),
        low_freq_factor=_number(parameters, "low_freq_factor"),
        high_freq_factor=_number(parameters, "high_freq_factor"),
        original_context_tokens=read_size(parameters, "original_max_position_embeddings"),
    )
