"""Assembles the decoder that the families share from the tensors that all of them name alike.

Must not know: family names, devices, steps.
"""

import attrs
import torch

from layered_llm.runtime.layers import CausalLm, DecoderLayer, GatedMlp, RmsNorm, RotaryEmbedding, SelfAttention
from layered_llm.runtime.linear import Linear
from layered_llm.runtime.model_config import ModelConfig
from layered_llm.runtime.weights import CheckpointReader


@attrs.frozen(kw_only=True)
class Variant:
    """Where families differ."""

    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Queries and keys are normalised head by head before they are rotated."""


def build_decoder(config: ModelConfig, reader: CheckpointReader, variant: Variant) -> CausalLm:
    """Reads the whole model. Raises CheckpointError for a tensor of another shape; missing ones are `reader.finish`'s."""
    embedding = reader.expanded(["model.embed_tokens.weight"], [config.vocabulary_size], config.hidden_size)
    if config.tied_head:
        reader.skip("lm_head.weight")
        head = embedding
    else:
        head = reader.expanded(["lm_head.weight"], [config.vocabulary_size], config.hidden_size)
    return CausalLm(
        embedding=torch.from_numpy(embedding),
        rotary=RotaryEmbedding.build(config.rope, config.head_dim),
        layers=tuple(_layer(config, reader, variant, layer) for layer in range(config.layers)),
        norm=_norm(config, reader, "model.norm", config.hidden_size),
        head=Linear.build(torch.from_numpy(head), None),
    )


def _layer(config: ModelConfig, reader: CheckpointReader, variant: Variant, layer: int) -> DecoderLayer:
    prefix = f"model.layers.{layer}"
    return DecoderLayer(
        attention_norm=_norm(config, reader, f"{prefix}.input_layernorm", config.hidden_size),
        attention=_attention(config, reader, variant, layer, f"{prefix}.self_attn"),
        mlp_norm=_norm(config, reader, f"{prefix}.post_attention_layernorm", config.hidden_size),
        mlp=_mlp(config, reader, variant, f"{prefix}.mlp"),
    )


def _attention(config: ModelConfig, reader: CheckpointReader, variant: Variant, layer: int, prefix: str) -> SelfAttention:
    names = [f"{prefix}.{name}_proj" for name in ("q", "k", "v")]
    sizes = [config.query_size, config.kv_size, config.kv_size]
    return SelfAttention(
        layer=layer,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        qkv=_linear(reader, names, sizes, config.hidden_size, has_bias=variant.qkv_bias),
        output=_linear(reader, [f"{prefix}.o_proj"], [config.hidden_size], config.query_size, has_bias=variant.output_bias),
        query_norm=_norm(config, reader, f"{prefix}.q_norm", config.head_dim) if variant.qk_norm else None,
        key_norm=_norm(config, reader, f"{prefix}.k_norm", config.head_dim) if variant.qk_norm else None,
    )


def _mlp(config: ModelConfig, reader: CheckpointReader, variant: Variant, prefix: str) -> GatedMlp:
    inner, outer = config.intermediate_size, config.hidden_size
    gate_up = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
    return GatedMlp(
        gate_up=_linear(reader, gate_up, [inner, inner], outer, has_bias=variant.mlp_bias),
        down=_linear(reader, [f"{prefix}.down_proj"], [outer], inner, has_bias=variant.mlp_bias),
    )


def _linear(reader: CheckpointReader, names: list[str], outputs: list[int], inputs: int, *, has_bias: bool) -> Linear:
    weight = torch.from_numpy(reader.expanded([f"{name}.weight" for name in names], outputs, inputs))
    bias = torch.from_numpy(reader.vector([f"{name}.bias" for name in names], outputs)) if has_bias else None
    return Linear.build(weight, bias)


def _norm(config: ModelConfig, reader: CheckpointReader, name: str, size: int) -> RmsNorm:
    return RmsNorm(weight=torch.from_numpy(reader.vector([f"{name}.weight"], [size])), eps=config.norm_eps)
