"""A model directory's config.json, read into what a decoder needs; what cannot be executed exactly is refused by name.

Must not know: torch, weights, which architectures have an implementation.

Names, defaults and precedence are those of Hugging Face's configuration classes (transformers 5.24): what its class of a model
does not read changes no number there, and is not read here; what it reads and we do not execute is refused. Version 5 writes
`rope_parameters` where earlier ones wrote `rope_theta` and `rope_scaling`; both are read.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, assert_never

import attrs

from layered_llm.formats.untrusted_files import UnreadableFile, read_json
from layered_llm.runtime.device import DeviceError
from layered_llm.runtime.model_classes import ARCHITECTURES, CLASSES, ModelClass, WindowRule

CONFIG_FILE: Final = "config.json"
_SLIDING: Final = "sliding_attention"
_LAYER_TYPES: Final = ("full_attention", _SLIDING, "attention")
"""The last is an older name of the first."""
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
    window_tokens: int | None = None
    """How many of the last tokens some layers see; None: all see all."""
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
    raw = find_config_json(model_dir)
    if raw is None:
        raise ModelConfigError(f"{model_dir / CONFIG_FILE} does not exist")
    return raw


def find_config_json(model_dir: Path) -> Mapping[str, Any] | None:
    """As `read_config_json`, but None where there is none."""
    try:
        return read_json(model_dir / CONFIG_FILE)
    except UnreadableFile as error:
        raise ModelConfigError(str(error)) from error


def parse_model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Raises ModelConfigError, naming the setting, for what is missing, contradictory or not supported."""
    _refuse_unsupported(raw)
    kind = _model_class(raw)
    heads, hidden_size, layers = (
        _size(raw, kind, name) for name in ("num_attention_heads", "hidden_size", "num_hidden_layers")
    )
    context_tokens = _size(raw, kind, "max_position_embeddings")
    config = ModelConfig(
        architecture=kind.architecture,
        hidden_size=hidden_size,
        intermediate_size=_size(raw, kind, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=heads if _setting(raw, kind, "num_key_value_heads") is None else _size(raw, kind, "num_key_value_heads"),
        head_dim=_head_dim(raw, kind, hidden_size, heads),
        vocabulary_size=_size(raw, kind, "vocab_size"),
        context_tokens=context_tokens,
        window_tokens=_window(raw, kind, layers),
        norm_eps=_number(raw, "rms_norm_eps", default=kind.defaults["rms_norm_eps"], may_be_zero=True),
        rope=_rope(raw, context_tokens),
        attention_bias=kind.reads_attention_bias and _flag(raw, "attention_bias"),
        mlp_bias=kind.reads_mlp_bias and _flag(raw, "mlp_bias"),
        tied_head=_flag(raw, "tie_word_embeddings"),
    )
    if config.heads % config.kv_heads:
        raise ModelConfigError(f"num_attention_heads={config.heads} is no multiple of num_key_value_heads={config.kv_heads}")
    if config.head_dim % 2:
        raise ModelConfigError(f"head_dim={config.head_dim} is odd, and rotary position embedding needs pairs")
    return config


def refuse_window(config: ModelConfig, context_tokens: int) -> None:
    """Raises ModelConfigError where layers would see less than a served context."""
    window = config.window_tokens
    if window is not None and window < context_tokens:
        raise ModelConfigError(
            f"sliding_window={window} is not supported below the context of {context_tokens} tokens; "
            f"--max-seq-len-override {window} serves the model within its window"
        )


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


def _model_class(raw: Mapping[str, Any]) -> ModelClass:
    """By `model_type`, as in transformers; `architectures` may name its class among others, or nothing.

    Where there is no `model_type`, `architectures` must name one class.
    """
    names, model_type = raw.get("architectures"), raw.get("model_type")
    names = [] if names is None else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelConfigError(f"{CONFIG_FILE}: architectures must be a list of names, got {_told(names)}")
    if names and not set(names) & set(ARCHITECTURES):
        raise ModelConfigError(f"architecture {_told(names[0])} is not supported, only {', '.join(ARCHITECTURES)}")
    if model_type is None and len(names) == 1:
        return next(each for each in CLASSES.values() if each.architecture == names[0])
    if model_type is None:
        raise ModelConfigError(f"{CONFIG_FILE} has no model_type, and architectures does not name exactly one model class")
    if not isinstance(model_type, str) or model_type not in CLASSES:
        raise ModelConfigError(f"model_type={_told(model_type)} is not supported, only {', '.join(CLASSES)}")
    return CLASSES[model_type]


def _setting(raw: Mapping[str, Any], kind: ModelClass, name: str) -> Any:
    return raw.get(name, kind.defaults[name])


def _size(raw: Mapping[str, Any], kind: ModelClass, name: str) -> int:
    """A setting that is no size if it is null."""
    if name in raw and raw[name] is None:
        raise ModelConfigError(f"{CONFIG_FILE}: {name} must be a positive integer, got null")
    return read_size(raw, name, default=kind.defaults[name])


def _head_dim(raw: Mapping[str, Any], kind: ModelClass, hidden_size: int, heads: int) -> int:
    default = kind.defaults["head_dim"]
    return read_size(raw, "head_dim", default=max(1, hidden_size // heads) if default is None else default)


def _number(raw: Mapping[str, Any], name: str, *, default: float | None = None, may_be_zero: bool = False) -> float:
    value = raw.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ModelConfigError(f"{CONFIG_FILE}: {name} must be a positive number, got {str(value)[:_VALUE_SHOWN]!r}")
    if value == 0 and not may_be_zero:
        raise ModelConfigError(f"{CONFIG_FILE}: {name} must be a positive number, got {str(value)!r}")
    return float(value)


def _flag(raw: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = raw.get(name, default)
    if not isinstance(value, bool):
        raise ModelConfigError(f"{CONFIG_FILE}: {name} must be true or false, got {_told(value)}")
    return value


def _told(value: object) -> str:
    return repr(value)[:_VALUE_SHOWN]


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """What transformers reads for models of every class. Other settings that no class reads change nothing."""
    quantization = raw.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise ModelConfigError(f"quantization_config with quant_method={_told(method)} is not supported")
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelConfigError(f"hidden_act={_told(activation)} is not supported, only 'silu'")
    if not raw.get("is_causal", True):
        raise ModelConfigError(f"is_causal={_told(raw['is_causal'])} is not supported, only true")
    for name in ("attention_chunk_size", "per_layer_config", "transformers_weights"):
        if raw.get(name):
            raise ModelConfigError(f"{name}={_told(raw[name])} is not supported")


def _window(raw: Mapping[str, Any], kind: ModelClass, layers: int) -> int | None:
    """The tokens that a layer sees which does not see all; None where every layer does."""
    match kind.window:
        case WindowRule.ALWAYS:
            window = _setting(raw, kind, "sliding_window")
            _check_layer_types(raw, layers, window)
        case WindowRule.ON_REQUEST:
            window = _setting(raw, kind, "sliding_window") if _flag(raw, "use_sliding_window") else None
            if not _has_window(raw, kind, layers, window):
                return None
        case _:
            assert_never(kind.window)
    if window is not None and (type(window) is not int or window < 1):
        raise ModelConfigError(f"{CONFIG_FILE}: sliding_window must be a positive integer or null, got {_told(window)}")
    return window


def _has_window(raw: Mapping[str, Any], kind: ModelClass, layers: int, window: object) -> bool:
    """Whether any layer is one of those with the window."""
    types = raw.get("layer_types")
    if types is not None:
        _check_layer_types(raw, layers, window)
        return _SLIDING in types
    first = _setting(raw, kind, "max_window_layers")
    if window is not None and type(first) is not int:
        raise ModelConfigError(f"{CONFIG_FILE}: max_window_layers must be an integer, got {_told(first)}")
    return window is not None and first < layers


def _check_layer_types(raw: Mapping[str, Any], layers: int, window: object) -> None:
    types = raw.get("layer_types")
    if types is None:
        return
    if not isinstance(types, list) or len(types) != layers or not all(name in _LAYER_TYPES for name in types):
        raise ModelConfigError(f"{CONFIG_FILE}: layer_types must name one of {', '.join(_LAYER_TYPES)} for each layer")
    if window is None and _SLIDING in types:
        raise ModelConfigError(f"{CONFIG_FILE}: layer_types has {_SLIDING}, but there is no sliding_window")


def _rope(raw: Mapping[str, Any], context_tokens: int) -> RopeConfig:
    """A `rope_scaling` that is there counts alone, as in transformers: nothing of `rope_parameters` is read beside it.

    What is inside counts before settings of the same name beside it, but for `original_max_position_embeddings`.
    """
    parameters = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping):
        raise ModelConfigError(f"{CONFIG_FILE}: rope_parameters or rope_scaling must be an object, got {_told(parameters)}")
    nested = next((name for name, value in parameters.items() if isinstance(value, Mapping)), None)
    if nested is not None:
        raise ModelConfigError(f"{CONFIG_FILE}: rope_parameters of {_told(nested)} alone are not supported, only of all layers")
    theta = parameters.get("rope_theta", raw.get("rope_theta", _DEFAULT_ROPE_THETA))
    rotary_factor = parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if rotary_factor is not None and rotary_factor != 1.0:
        raise ModelConfigError(f"partial_rotary_factor={_told(rotary_factor)} is not supported, only 1.0")
    scaling: RopeScaling | None
    match parameters.get("rope_type", parameters.get("type", "default")):
        case "default":
            scaling = None
        case "dynamic":  # stretches only what is longer than the model's context
            _number(parameters, "factor")
            scaling = None
        case "linear":
            scaling = LinearScaling(factor=_number(parameters, "factor"))
        case "llama3":
            scaling = _llama3_scaling(raw, parameters, context_tokens)
        case other:
            raise ModelConfigError(
                f"rope_type={_told(other)} is not supported, only 'default', 'linear', 'dynamic' and 'llama3'"
            )
    return RopeConfig(theta=_number({"rope_theta": theta}, "rope_theta"), scaling=scaling)


def _llama3_scaling(raw: Mapping[str, Any], parameters: Mapping[str, Any], context_tokens: int) -> Llama3Scaling:
    own = read_size(parameters, "original_max_position_embeddings", default=context_tokens)
    scaling = Llama3Scaling(
        factor=_number(parameters, "factor"),
        low_freq_factor=_number(parameters, "low_freq_factor"),
        high_freq_factor=_number(parameters, "high_freq_factor"),
        original_context_tokens=read_size(raw, "original_max_position_embeddings", default=own),
    )
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if high <= low:
        raise ModelConfigError(f"{CONFIG_FILE}: high_freq_factor={high} must be above low_freq_factor={low}")
    return scaling
