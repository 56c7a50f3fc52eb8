"""Qwen3, dense: Llama with normalised queries and keys.

Must not know: devices, steps.
"""

from layered_llm.runtime.decoder_weights import DecoderWeights
from layered_llm.runtime.model_config import ModelConfig
from layered_llm.runtime.models.decoder import Variant, build_decoder
from layered_llm.runtime.weights import CheckpointReader


def build(config: ModelConfig, reader: CheckpointReader) -> DecoderWeights:
    bias = config.attention_bias
    return build_decoder(config, reader, Variant(qkv_bias=bias, output_bias=bias, mlp_bias=False, qk_norm=True))
