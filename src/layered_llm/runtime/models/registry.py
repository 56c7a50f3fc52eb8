"""Which architecture of a config.json is built by which module: a new family is a file and a line here.

Must not know: devices, steps.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from layered_llm.runtime.decoder_weights import DecoderWeights
from layered_llm.runtime.model_config import ModelConfig, ModelConfigError
from layered_llm.runtime.models import llama, qwen2, qwen3
from layered_llm.runtime.weights import CheckpointReader

Builder = Callable[[ModelConfig, CheckpointReader], DecoderWeights]

BUILDERS: Final[Mapping[str, Builder]] = MappingProxyType(
    {
        "LlamaForCausalLM": llama.build,
        "MistralForCausalLM": llama.build,
        "Qwen2ForCausalLM": qwen2.build,
        "Qwen3ForCausalLM": qwen3.build,
    }
)


def builder_of(architecture: str) -> Builder:
    """Raises ModelConfigError, with the list of what is supported, for an architecture that is not."""
    if architecture not in BUILDERS:
        raise ModelConfigError(f"architecture {architecture!r} is not supported, only {', '.join(BUILDERS)}")
    return BUILDERS[architecture]
