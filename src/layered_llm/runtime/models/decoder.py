"""Assembles the decoder that the families share from the tensors that all of them name alike.

Must not know: family names, devices, steps.
"""

from typing import Final

from layered_llm.runtime.checkpoint.matrices import Split
from layered_llm.runtime.checkpoint.panels import Matrix
from layered_llm.runtime.checkpoint.weights import CheckpointReader
from layered_llm.runtime.device.step_inputs import Float32s
from layered_llm.runtime.models.decoder_weights import (
    AttentionWeights,
    DecoderWeights,
    GatedWeights,
    LayerWeights,
    LinearWeights,
)
from layered_llm.runtime.models.model_config import GatedSpec, LayerSpec, ModelConfig, gated

_EMBEDDING: Final = "model.embed_tokens.weight"
_HEAD: Final = "lm_head.weight"


def build_decoder(config: ModelConfig, reader: CheckpointReader) -> DecoderWeights:
    """Reads the whole model, or what the reader's rank has of it.

    Raises CheckpointError for a tensor of another shape, and ModelConfigError where there are no equal parts; tensors that are
    missing are `reader.finish`'s.
    """
    config = config.of_rank(reader.shard)
    embedding, head = _embedding_and_head(config, reader)
    return DecoderWeights(
        config=config,
        embedding=embedding,
        layers=tuple(_layer(config, reader, spec, f"model.layers.{layer}") for layer, spec in enumerate(config.layers)),
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


def _layer(config: ModelConfig, reader: CheckpointReader, spec: LayerSpec, prefix: str) -> LayerWeights:
    return LayerWeights(
        attention_norm=_norm(reader, f"{prefix}.input_layernorm", config.hidden_size),
        attention=_attention(config, reader, spec, f"{prefix}.self_attn"),
        mlp_norm=_norm(reader, f"{prefix}.post_attention_layernorm", config.hidden_size),
        mlp=_mlp(config, reader, gated(spec.mlp), f"{prefix}.mlp"),
    )


def _attention(config: ModelConfig, reader: CheckpointReader, spec: LayerSpec, prefix: str) -> AttentionWeights:
    hidden, head_dim, has_norms = config.hidden_size, config.head_dim, spec.has_head_norms
    qkv, qkv_sizes = [f"{prefix}.{name}_proj" for name in "qkv"], [config.query_size, config.kv_size, config.kv_size]
    return AttentionWeights(
        qkv=_column_parallel(reader, qkv, qkv_sizes, hidden, has_bias=spec.has_qkv_bias),
        query_norm=_norm(reader, f"{prefix}.q_norm", head_dim) if has_norms else None,
        key_norm=_norm(reader, f"{prefix}.k_norm", head_dim) if has_norms else None,
        output=_row_parallel(reader, f"{prefix}.o_proj", hidden, config.query_size, has_bias=spec.has_output_bias),
    )


def _mlp(config: ModelConfig, reader: CheckpointReader, spec: GatedSpec, prefix: str) -> GatedWeights:
    hidden, inner, gate_up = config.hidden_size, spec.intermediate_size, [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
    return GatedWeights(
        gate_up=_column_parallel(reader, gate_up, [inner, inner], hidden, has_bias=spec.has_bias),
        down=_row_parallel(reader, f"{prefix}.down_proj", hidden, inner, has_bias=spec.has_bias),
    )


def _column_parallel(
    reader: CheckpointReader, names: list[str], outputs: list[int], inputs: int, *, has_bias: bool
) -> LinearWeights:
    """A rank has some of the outputs."""
    return LinearWeights(
        matrix=reader.matrix([f"{name}.weight" for name in names], outputs, inputs),
        bias=reader.vector([f"{name}.bias" for name in names], outputs, is_split=True) if has_bias else None,
    )


def _row_parallel(reader: CheckpointReader, name: str, outputs: int, inputs: int, *, has_bias: bool) -> LinearWeights:
    """A rank has some of the inputs: the ranks' results are added, and the first rank adds the bias."""
    matrix, bias = reader.matrix([f"{name}.weight"], [outputs], inputs, Split.COLUMNS), f"{name}.bias"
    if has_bias and reader.shard.rank:
        reader.skip(bias)
        has_bias = False
    return LinearWeights(matrix=matrix, bias=reader.vector([bias], [outputs]) if has_bias else None)


def _norm(reader: CheckpointReader, name: str, size: int) -> Float32s:
    return reader.vector([f"{name}.weight"], [size])
