"""Reads the layers of the dense families that differ from Llama in biases, norms of heads and windows alone.

Must not know: weights, which families there are, devices.
"""

from typing import Any, Final

import attrs

from layered_llm.runtime.models.config_json import CONFIG_FILE, Settings, read_rope, shown
from layered_llm.runtime.models.model_config import (
    FullAttention,
    GatedSpec,
    LayerSpec,
    ModelConfigError,
    ModelFacts,
    WindowAttention,
)

_SLIDING: Final = "sliding_attention"
_LAYER_TYPES: Final = ("full_attention", _SLIDING, "attention")
"""The last is an older name of the first."""


def dense_layers(
    settings: Settings,
    facts: ModelFacts,
    *,
    reads_attention_bias: bool = False,
    reads_mlp_bias: bool = False,
    has_qkv_bias: bool = False,
    has_head_norms: bool = False,
    has_optional_window: bool = False,
) -> list[LayerSpec]:
    """One for each layer. A setting that a class of transformers does not read changes nothing there, and nothing here.

    A window that is not optional counts in all layers, unless it is null; Llama's do not read it, but the cache that they are
    given does. An optional one needs use_sliding_window, and counts in the layers that layer_types names, or in those from
    max_window_layers on. Raises ModelConfigError, naming the setting, for what is contradictory or not supported.
    """
    activation = settings.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelConfigError(f"hidden_act={shown(activation)} is not supported, only 'silu'")
    has_bias = reads_attention_bias and settings.flag("attention_bias")
    has_mlp_bias = reads_mlp_bias and settings.flag("mlp_bias")
    layer = LayerSpec(
        attention=FullAttention(),
        rope=read_rope(settings, facts.context_tokens),
        has_qkv_bias=has_qkv_bias or has_bias,
        has_output_bias=has_bias,
        has_head_norms=has_head_norms,
        mlp=GatedSpec(intermediate_size=settings.size("intermediate_size"), has_bias=has_mlp_bias),
    )
    is_on = not has_optional_window or settings.flag("use_sliding_window")
    window = settings.get("sliding_window") if is_on else None
    slides = _sliding_layers(settings, facts.layer_count, window, is_optional=has_optional_window)
    if True not in slides:
        return [layer] * facts.layer_count
    if type(window) is not int or window < 1:
        raise ModelConfigError(f"{CONFIG_FILE}: sliding_window must be a positive integer or null, got {shown(window)}")
    windowed = attrs.evolve(layer, attention=WindowAttention(window))
    return [windowed if each else layer for each in slides]


def _sliding_layers(settings: Settings, layers: int, window: Any, *, is_optional: bool) -> list[bool]:
    types = settings.get("layer_types")
    if types is not None:
        _check_layer_types(types, layers, window)
    if not is_optional or (window is None and types is None):
        return [window is not None] * layers
    if types is not None:
        return [each == _SLIDING for each in types]
    first = settings.get("max_window_layers")
    if type(first) is not int:
        raise ModelConfigError(f"{CONFIG_FILE}: max_window_layers must be an integer, got {shown(first)}")
    return [layer >= first for layer in range(layers)]


def _check_layer_types(types: Any, layers: int, window: Any) -> None:
    if not isinstance(types, list) or len(types) != layers or not all(name in _LAYER_TYPES for name in types):
        raise ModelConfigError(f"{CONFIG_FILE}: layer_types must name one of {', '.join(_LAYER_TYPES)} for each layer")
    if window is None and _SLIDING in types:
        raise ModelConfigError(f"{CONFIG_FILE}: layer_types has {_SLIDING}, but there is no sliding_window")
