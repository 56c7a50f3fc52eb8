"""The weights of a decoder, as they are read from a checkpoint and arranged, before anything executes them.

Must not know: files, torch, how a step is executed.
"""

from collections.abc import Iterator
from typing import Final

import attrs

from layered_llm.runtime.checkpoint.panels import Matrix
from layered_llm.runtime.device.step_inputs import Float32s
from layered_llm.runtime.models.model_config import ModelConfig

_FP32_BYTES: Final = 4


@attrs.frozen(kw_only=True, eq=False)
class LinearWeights:
    """x W^T + b."""

    matrix: Matrix
    bias: Float32s | None
    """[rows of the matrix]."""


@attrs.frozen(kw_only=True, eq=False)
class AttentionWeights:
    """Of a layer's attention."""

    qkv: LinearWeights
    """Queries, keys and values, one below the other."""
    query_norm: Float32s | None
    """[head_dim]; None where the layer has no norm for each head, as the key's."""
    key_norm: Float32s | None
    output: LinearWeights


@attrs.frozen(kw_only=True, eq=False)
class GatedWeights:
    """Of a gated MLP."""

    gate_up: LinearWeights
    """The gate's rows, then those of the up projection."""
    down: LinearWeights


@attrs.frozen(kw_only=True, eq=False)
class LayerWeights:
    """Of what a `LayerSpec` describes. Norms are fp32 vectors."""

    attention_norm: Float32s
    attention: AttentionWeights
    mlp_norm: Float32s
    mlp: GatedWeights


@attrs.frozen(kw_only=True, eq=False)
class DecoderWeights:
    """All weights of a model."""

    config: ModelConfig
    embedding: Matrix
    """[vocabulary, hidden]."""
    layers: tuple[LayerWeights, ...]
    """One for each of the config's."""
    norm: Float32s
    head: Matrix
    """[vocabulary, hidden]; the embedding itself where they are tied."""

    @property
    def stored_bytes(self) -> int:
        """What all matrices take as they are."""
        return sum(matrix.data.nbytes for matrix in self.matrices())

    @property
    def expanded_bytes(self) -> int:
        """What all matrices take as fp32; a head that is tied to the embedding is packed beside it."""
        tied = (self.head,) if self.head is self.embedding else ()
        return sum(_FP32_BYTES * matrix.rows * matrix.columns for matrix in (*self.matrices(), *tied))

    def matrices(self) -> Iterator[Matrix]:
        """Each once."""
        yield self.embedding
        for layer in self.layers:
            for linear in (layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down):
                yield linear.matrix
        if self.head is not self.embedding:
            yield self.head
