"""Assembles the decoder that the families share from the tensors that all of them name alike.

Must not know: family names, devices, steps.
"""

from typing import Final

import attrs

from layered_llm.runtime.decoder_weights import DecoderWeights, LayerWeights, LinearWeights
from layered_llm.runtime.matrices import Float32s
from layered_llm.runtime.model_config import ModelConfig
from layered_llm.runtime.panels import Matrix
from layered_llm.runtime.weights import CheckpointReader

_EMBEDDING: Final = "model.embed_tokens.weight"
_HEAD: Final = "lm_head.weight"


@attrs.frozen(kw_only=True)
class Variant:
    """Where families differ."""

    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Queries and keys are normalised head by head before they are rotated."""


def build_decoder(config: ModelConfig, reader: CheckpointReader, variant: Variant) -> DecoderWeights:
    """Reads the whole model. Raises CheckpointError for a tensor of another shape; missing ones are `reader.finish`'s."""
    embedding, head = _embedding_and_head(config, reader)
    return DecoderWeights(
        config=config,
        embedding=embedding,
        layers=tuple(_layer(config, reader, variant, f"model.layers.{layer}") for layer in range(config.layers)),
        norm=_norm(reader, "model.norm", config.hidden_size),
        head=head,
    )


def _embedding_and_head(config: ModelConfig, reader: CheckpointReader) -> tuple[Matrix, Matrix]:
    """Where the config ties them but the checkpoint has both, and they differ, the checkpoint is right, as in transformers.

    Where it has only the head, that is both.
    """
    rows, columns = [config.vocabulary_size], config.hidden_size
    if not config.tied_head:
        return reader.matrix([_EMBEDDING], rows, columns), reader.matrix([_HEAD], rows, columns)
    only = _HEAD if reader.has(_HEAD) and not reader.has(_EMBEDDING) else _EMBEDDING
    differ = reader.has(_HEAD) and reader.has(_EMBEDDING) and not reader.are_equal(_EMBEDDING, _HEAD)
    matrix = reader.matrix([only], rows, columns)
    reader.skip(_HEAD)
    return matrix, reader.matrix([_HEAD], rows, columns) if differ else matrix


def _layer(config: ModelConfig, reader: CheckpointReader, variant: Variant, prefix: str) -> LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv_sizes = [config.query_size, config.kv_size, config.kv_size]
    qkv, gate_up = [f"{attention}.{name}_proj" for name in "qkv"], [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
    return LayerWeights(
        attention_norm=_norm(reader, f"{prefix}.input_layernorm", hidden),
        qkv=_linear(reader, qkv, qkv_sizes, hidden, has_bias=variant.qkv_bias),
        query_norm=_norm(reader, f"{attention}.q_norm", config.head_dim) if variant.qk_norm else None,
        key_norm=_norm(reader, f"{attention}.k_norm", config.head_dim) if variant.qk_norm else None,
        output=_linear(reader, [f"{attention}.o_proj"], [hidden], config.query_size, has_bias=variant.output_bias),
        mlp_norm=_norm(reader, f"{prefix}.post_attention_layernorm", hidden),
        gate_up=_linear(reader, gate_up, [inner, inner], hidden, has_bias=variant.mlp_bias),
        down=_linear(reader, [f"{mlp}.down_proj"], [hidden], inner, has_bias=variant.mlp_bias),
    )


def _linear(reader: CheckpointReader, names: list[str], outputs: list[int], inputs: int, *, has_bias: bool) -> LinearWeights:
    return LinearWeights(
        matrix=reader.matrix([f"{name}.weight" for name in names], outputs, inputs),
        bias=reader.vector([f"{name}.bias" for name in names], outputs) if has_bias else None,
    )


def _norm(reader: CheckpointReader, name: str, size: int) -> Float32s:
    return reader.vector([f"{name}.weight"], [size])
