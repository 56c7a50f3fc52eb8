"""Which metadata of a GGUF file change what its model computes: those that are read, those that do not, and all others.

Must not know: the file's format, tensors, Hugging Face's names.

Reference: how llama.cpp reads and computes the architectures "llama", "qwen2" and "qwen3", and the names of the library `gguf`.
Converters that serve many architectures write keys that these do not need, with values that say that nothing is done. What is
in no list may change the numbers, and is refused by name.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

_USED: Final = frozenset(
    {
        *("block_count", "context_length", "embedding_length", "feed_forward_length"),
        *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
        *("attention.layer_norm_rms_epsilon", "attention.scale", "attention.sliding_window"),
        *("rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.factor", "rope.scaling.type"),
    }
)
"""Keys that are read."""
_HARMLESS: Final = frozenset(
    {
        *("vocab_size", "tensor_data_layout", "use_parallel_residual", "pooling_type", "classifier.output_labels"),
        *("attention.layer_norm_epsilon", "attention.group_norm_epsilon", "attention.sliding_window_pattern"),
        *("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa", "rope.freq_base_swa"),
        *("rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.scaling.orig_ctx_len"),
        *("rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
    }
)
"""Keys that these architectures do not read, or only for YaRN and sliding windows, which are refused themselves."""
_OFF: Final = frozenset({0})
_NEUTRAL: Final[Mapping[str, frozenset[float]]] = MappingProxyType(
    {
        "attention.causal": frozenset({1}),
        "attention.output_scale": frozenset({0, 1}),
        "attention.clamp_kqv": _OFF,
        "attention.max_alibi_bias": _OFF,
        "attention.shared_kv_layers": _OFF,
        "attention.temperature_length": _OFF,
        "attention.temperature_scale": _OFF,
        "attn_logit_softcapping": _OFF,
        "final_logit_softcapping": _OFF,
        "logit_scale": frozenset({0, 1}),
        "residual_scale": frozenset({0, 1}),
        "embedding_scale": frozenset({0, 1}),
        "expert_count": _OFF,
        "expert_used_count": _OFF,
        "expert_shared_count": _OFF,
        "expert_feed_forward_length": _OFF,
        "expert_shared_feed_forward_length": _OFF,
        "expert_group_count": _OFF,
        "expert_group_used_count": _OFF,
        "expert_gating_func": _OFF,
        "expert_weights_scale": frozenset({0, 1}),
        "expert_weights_norm": _OFF,
        "leading_dense_block_count": _OFF,
        "interleave_moe_layer_step": _OFF,
        "full_attention_interval": _OFF,
        "nextn_predict_layers": _OFF,
        "n_deepstack_layers": _OFF,
        "rope.scaling.alpha": frozenset({0, 1}),
        "rope.scaling.attn_factor": frozenset({1}),
        "rope.scaling.yarn_attn_factor": frozenset({-1, 1}),
        "rope.scaling.yarn_ext_factor": frozenset({-1, 0}),
        "swin_norm": _OFF,
    }
)
"""Keys that change nothing with one of these values (true is 1)."""


def changing_keys(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The keys of `metadata`, without the architecture, that may change what is computed in a way that nobody reads."""
    for key, value in metadata.items():
        if key not in _USED and key not in _HARMLESS and not _is_neutral(key, value):
            yield key


def _is_neutral(name: str, value: object) -> bool:
    return isinstance(value, int | float) and value in _NEUTRAL.get(name, ())
