"""Qwen2 and Qwen2.5, dense: Llama with biases on queries, keys and values.

Must not know: devices, steps.
"""

from layered_llm.runtime.decoder_weights import DecoderWeights
from layered_llm.runtime.model_config import ModelConfig
from layered_llm.runtime.models.decoder import Variant, build_decoder
from layered_llm.runtime.weights import CheckpointReader


def build(config: ModelConfig, reader: CheckpointReader) -> DecoderWeights:
    return build_decoder(config, reader, Variant(qkv_bias=True, output_bias=False, mlp_bias=False, qk_norm=False))
