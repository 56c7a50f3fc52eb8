"""The weights of a decoder, as they are read from a checkpoint and before anything executes them.

Must not know: files, torch, how a step is executed.
"""

import attrs

from layered_llm.runtime.matrices import Float32s, WeightMatrix
from layered_llm.runtime.model_config import ModelConfig


@attrs.frozen(kw_only=True, eq=False)
class LinearWeights:
    """x W^T + b."""

    matrix: WeightMatrix
    bias: Float32s | None
    """[rows of the matrix]."""


@attrs.frozen(kw_only=True, eq=False)
class LayerWeights:
    """Pre-normalised attention and gated MLP. Norms are fp32 vectors."""

    attention_norm: Float32s
    qkv: LinearWeights
    """Queries, keys and values, one below the other."""
    query_norm: Float32s | None
    """[head_dim]; None where the family has no norm for each head, as the key's."""
    key_norm: Float32s | None
    output: LinearWeights
    mlp_norm: Float32s
    gate_up: LinearWeights
    """The gate's rows, then those of the up projection."""
    down: LinearWeights


@attrs.frozen(kw_only=True, eq=False)
class DecoderWeights:
    """All weights of a model."""

    config: ModelConfig
    embedding: WeightMatrix
    """[vocabulary, hidden]."""
    layers: tuple[LayerWeights, ...]
    norm: Float32s
    head: WeightMatrix
    """[vocabulary, hidden]; the embedding itself where they are tied."""
