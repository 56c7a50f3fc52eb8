"""The first reading of a config.json: what models of every family have, and what is refused for all of them.

Must not know: torch, weights, which families there are.

Names and precedence are those of Hugging Face's configuration classes (transformers 5.24): what its class of a model does not
read changes no number there, and is not read here; what it reads and we do not execute is refused by name. Version 5 writes
`rope_parameters` where earlier ones wrote `rope_theta` and `rope_scaling`; both are read.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs

from layered_llm.formats.untrusted_files import UnreadableFile, read_json
from layered_llm.runtime.models.model_config import (
    LinearScaling,
    Llama3Scaling,
    ModelConfigError,
    ModelFacts,
    RopeConfig,
    RopeScaling,
)

CONFIG_FILE: Final = "config.json"
_DEFAULT_ROPE_THETA: Final = 10_000.0
_LARGEST_SIZE: Final = 2**31 - 1
_MOST_LAYERS: Final = 10_000
_VALUE_SHOWN: Final = 80


def find_config_json(model_dir: Path) -> Mapping[str, Any] | None:
    """The parsed config.json of `model_dir`; None where there is none. Raises ModelConfigError where it is no JSON object."""
    try:
        return read_json(model_dir / CONFIG_FILE)
    except UnreadableFile as error:
        raise ModelConfigError(str(error)) from error


def shown(value: object) -> str:
    """A value of a file in a message of one line."""
    return repr(value)[:_VALUE_SHOWN]


@attrs.frozen
class Settings:
    """A config.json or an object in it, with what its class says of settings that are absent.

    All methods raise ModelConfigError, naming the setting, for a value of another kind.
    """

    _given: Mapping[str, Any]
    defaults: Mapping[str, Any] = MappingProxyType({})

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it was given, null included; `default` where neither file nor class says one."""
        return self._given.get(name, self.defaults.get(name, default))

    def size(self, name: str, *, default: int | None = None) -> int:
        """A positive 32-bit integer; null means `default`."""
        value = self.get(name)
        value = default if value is None else value
        if value is None and name not in self._given:
            raise ModelConfigError(f"{CONFIG_FILE} lacks {name}")
        if value is None:
            raise ModelConfigError(f"{CONFIG_FILE}: {name} must be a positive integer, got null")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST_SIZE:
            raise ModelConfigError(
                f"{CONFIG_FILE}: {name} must be a positive integer up to {_LARGEST_SIZE}, got {str(value)[:_VALUE_SHOWN]!r}"
            )
        return value

    def number(self, name: str, *, may_be_zero: bool = False) -> float:
        value = self.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= sys.float_info.max or (value == 0 and not may_be_zero):
            raise ModelConfigError(f"{CONFIG_FILE}: {name} must be a positive number, got {str(value)[:_VALUE_SHOWN]!r}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.get(name, False)
        if not isinstance(value, bool):
            raise ModelConfigError(f"{CONFIG_FILE}: {name} must be true or false, got {shown(value)}")
        return value


def read_facts(settings: Settings, architecture: str) -> ModelFacts:
    """Raises ModelConfigError, naming the setting, for what is missing, contradictory or supported for no family."""
    _refuse_unsupported(settings)
    heads, hidden_size = settings.size("num_attention_heads"), settings.size("hidden_size")
    facts = ModelFacts(
        architecture=architecture,
        hidden_size=hidden_size,
        layer_count=settings.size("num_hidden_layers"),
        heads=heads,
        kv_heads=settings.size("num_key_value_heads", default=heads),
        head_dim=settings.size("head_dim", default=settings.defaults.get("head_dim") or max(1, hidden_size // heads)),
        vocabulary_size=settings.size("vocab_size"),
        context_tokens=settings.size("max_position_embeddings"),
        norm_eps=settings.number("rms_norm_eps", may_be_zero=True),
        tied_head=settings.flag("tie_word_embeddings"),
    )
    if facts.heads % facts.kv_heads:
        raise ModelConfigError(f"num_attention_heads={facts.heads} is no multiple of num_key_value_heads={facts.kv_heads}")
    if facts.head_dim % 2:
        raise ModelConfigError(f"head_dim={facts.head_dim} is odd, and rotary position embedding needs pairs")
    if facts.layer_count > _MOST_LAYERS:
        raise ModelConfigError(f"num_hidden_layers={facts.layer_count} is not supported, at most {_MOST_LAYERS}")
    return facts


def _refuse_unsupported(settings: Settings) -> None:
    """What transformers reads for models of every class. Other settings that no class reads change nothing."""
    quantization = settings.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise ModelConfigError(f"quantization_config with quant_method={shown(method)} is not supported")
    if not settings.get("is_causal", True):
        raise ModelConfigError(f"is_causal={shown(settings.get('is_causal'))} is not supported, only true")
    for name in ("attention_chunk_size", "per_layer_config", "transformers_weights"):
        if settings.get(name):
            raise ModelConfigError(f"{name}={shown(settings.get(name))} is not supported")


def read_rope(settings: Settings, context_tokens: int) -> RopeConfig:
    """A `rope_scaling` that is there counts alone, as in transformers: nothing of `rope_parameters` is read beside it.

    What is inside counts before settings of the same name beside it, but for `original_max_position_embeddings`.
    """
    given = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise ModelConfigError(f"{CONFIG_FILE}: rope_parameters or rope_scaling must be an object, got {shown(given)}")
    nested = next((name for name, value in given.items() if isinstance(value, Mapping)), None)
    if nested is not None:
        raise ModelConfigError(f"{CONFIG_FILE}: rope_parameters of {shown(nested)} alone are not supported, only of all layers")
    parameters = Settings(given, {"rope_theta": settings.get("rope_theta", _DEFAULT_ROPE_THETA)})
    rotary_factor = parameters.get("partial_rotary_factor", settings.get("partial_rotary_factor"))
    if rotary_factor is not None and rotary_factor != 1.0:
        raise ModelConfigError(f"partial_rotary_factor={shown(rotary_factor)} is not supported, only 1.0")
    return RopeConfig(scaling=_rope_scaling(settings, parameters, context_tokens), theta=parameters.number("rope_theta"))


def _rope_scaling(settings: Settings, parameters: Settings, context_tokens: int) -> RopeScaling | None:
    match parameters.get("rope_type", parameters.get("type", "default")):
        case "default":
            return None
        case "dynamic":  # stretches only what is longer than the model's context
            parameters.number("factor")
            return None
        case "linear":
            return LinearScaling(factor=parameters.number("factor"))
        case "llama3":
            return _llama3_scaling(settings, parameters, context_tokens)
        case other:
            raise ModelConfigError(
                f"rope_type={shown(other)} is not supported, only 'default', 'linear', 'dynamic' and 'llama3'"
            )


def _llama3_scaling(settings: Settings, parameters: Settings, context_tokens: int) -> Llama3Scaling:
    own = parameters.size("original_max_position_embeddings", default=context_tokens)
    scaling = Llama3Scaling(
        factor=parameters.number("factor"),
        low_freq_factor=parameters.number("low_freq_factor"),
        high_freq_factor=parameters.number("high_freq_factor"),
        original_context_tokens=settings.size("original_max_position_embeddings", default=own),
    )
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if high <= low:
        raise ModelConfigError(f"{CONFIG_FILE}: high_freq_factor={high} must be above low_freq_factor={low}")
    return scaling
