"""Which model class is of which family, and what transformers' class says where a config.json says nothing.

Must not know: files, devices, steps.

A new family is a row here; it needs a file of its own only for layers that no other file reads. Checkpoints are saved from
these classes, so that a default that they do not write is what they were trained with.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import attrs

from layered_llm.runtime.checkpoint.weights import CheckpointReader
from layered_llm.runtime.models.config_json import CONFIG_FILE, Settings, read_facts, shown
from layered_llm.runtime.models.decoder import build_decoder
from layered_llm.runtime.models.decoder_weights import DecoderWeights
from layered_llm.runtime.models.dense import dense_layers
from layered_llm.runtime.models.model_config import LayerSpec, ModelConfig, ModelConfigError, ModelFacts


@attrs.frozen(kw_only=True)
class Family:
    """A class of transformers, and how it is read."""

    architecture: str
    defaults: Mapping[str, Any]
    """By setting, for those that are absent. None: the value is made from others."""
    read_layers: Callable[[Settings, ModelFacts], Iterable[LayerSpec]]
    """The second reading of a config.json. Raises ModelConfigError for what the family does not support."""
    build: Callable[[ModelConfig, CheckpointReader], DecoderWeights] = build_decoder

    def parse(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Raises ModelConfigError, naming the setting, for what is missing, contradictory or not supported."""
        settings = Settings(raw, self.defaults)
        facts = read_facts(settings, self.architecture)
        return ModelConfig.of(facts, self.read_layers(settings, facts))


_COMMON: Final = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
}
_LLAMA: Final = _COMMON | {
    "vocab_size": 32_000,
    "intermediate_size": 11_008,
    "num_key_value_heads": None,
    "max_position_embeddings": 2048,
    "sliding_window": None,
}
_MISTRAL: Final = _COMMON | {
    "vocab_size": 32_000,
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_QWEN: Final = _COMMON | {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "llama": Family(
            architecture="LlamaForCausalLM",
            defaults=_LLAMA,
            read_layers=partial(dense_layers, reads_attention_bias=True, reads_mlp_bias=True),
        ),
        "mistral": Family(architecture="MistralForCausalLM", defaults=_MISTRAL, read_layers=dense_layers),
        "qwen2": Family(
            architecture="Qwen2ForCausalLM",
            defaults=_QWEN,
            read_layers=partial(dense_layers, has_qkv_bias=True, has_optional_window=True),
        ),
        "qwen3": Family(
            architecture="Qwen3ForCausalLM",
            defaults=_QWEN | {"head_dim": 128},
            read_layers=partial(dense_layers, reads_attention_bias=True, has_head_norms=True, has_optional_window=True),
        ),
    }
)
"""By `model_type`."""


def family_of(raw: Mapping[str, Any]) -> Family:
    """By `model_type`, as in transformers; `architectures` may name its class among others, or nothing.

    Where there is no `model_type`, `architectures` must name one class. Raises ModelConfigError where no family is found.
    """
    names, model_type = raw.get("architectures"), raw.get("model_type")
    names = [] if names is None else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelConfigError(f"{CONFIG_FILE}: architectures must be a list of names, got {shown(names)}")
    known = {family.architecture: family for family in FAMILIES.values()}
    if names and not set(names) & set(known):
        return _default(f"architecture {shown(names[0])}", known)
    if model_type is None and len(names) == 1:
        return known[names[0]]
    if model_type is None:
        raise ModelConfigError(f"{CONFIG_FILE} has no model_type, and architectures does not name exactly one model class")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        return _default(f"model_type={shown(model_type)}", FAMILIES)
    return FAMILIES[model_type]


def _default(what: str, known: Iterable[str]) -> Family:
    """In place of a family, where the registry has none: a model is refused, with what is supported."""
    raise ModelConfigError(f"{what} is not supported, only {', '.join(known)}")
