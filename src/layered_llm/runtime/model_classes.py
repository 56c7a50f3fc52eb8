"""What transformers' configuration classes say where a config.json says nothing, and which settings each of them reads.

Must not know: files, weights, how a setting is parsed.

A setting that a class does not read changes nothing there (a bias of Mistral's projections), and nothing here. Checkpoints
are saved from these classes, so that a default that they do not write is what they were trained with.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import attrs


class WindowRule(Enum):
    """Which settings of a config.json say that layers see only the last tokens."""

    ALWAYS = "sliding_window"
    """In all layers, unless it is null. Llama's layers do not read it, but the cache that they are given does."""
    ON_REQUEST = "use_sliding_window, sliding_window, max_window_layers, layer_types"
    """Only with use_sliding_window, in the layers from max_window_layers on or those that layer_types names."""


@attrs.frozen(kw_only=True)
class ModelClass:
    """A class of transformers."""

    architecture: str
    defaults: Mapping[str, Any]
    """By setting, for those that are absent. None: the value is made from others."""
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    window: WindowRule = WindowRule.ALWAYS


_COMMON: Final = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
}
_LLAMA: Final = {
    "vocab_size": 32_000,
    "intermediate_size": 11_008,
    "num_key_value_heads": None,
    "max_position_embeddings": 2048,
    "sliding_window": None,
}
_MISTRAL: Final = {
    "vocab_size": 32_000,
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_QWEN: Final = {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

CLASSES: Final[Mapping[str, ModelClass]] = MappingProxyType(
    {
        "llama": ModelClass(
            architecture="LlamaForCausalLM", defaults=_COMMON | _LLAMA, reads_attention_bias=True, reads_mlp_bias=True
        ),
        "mistral": ModelClass(architecture="MistralForCausalLM", defaults=_COMMON | _MISTRAL),
        "qwen2": ModelClass(architecture="Qwen2ForCausalLM", defaults=_COMMON | _QWEN, window=WindowRule.ON_REQUEST),
        "qwen3": ModelClass(
            architecture="Qwen3ForCausalLM",
            defaults=_COMMON | _QWEN | {"head_dim": 128},
            reads_attention_bias=True,
            window=WindowRule.ON_REQUEST,
        ),
    }
)
"""By `model_type`."""
ARCHITECTURES: Final = tuple(each.architecture for each in CLASSES.values())
