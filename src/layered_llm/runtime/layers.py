"""The building blocks that decoder models share, over flat tokens in fp32.

Must not know: checkpoint names, families, slots, sampling.

A step's tokens are rows of one matrix [tokens, hidden], without padding and without a batch dimension.
"""

import math
from typing import assert_never

import attrs
import torch
from torch.nn.functional import rms_norm, silu

from layered_llm.runtime.attention import AttentionPlan, attend
from layered_llm.runtime.kv_cache import KvCache
from layered_llm.runtime.linear import Linear
from layered_llm.runtime.model_config import FrequencyFactors, LinearScaling, Llama3Scaling, RopeConfig, RopeScaling


@attrs.frozen(kw_only=True, eq=False)
class RmsNorm:
    """Root mean square normalisation over the last dimension (Zhang, Sennrich, 2019)."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight.shape, self.weight, self.eps)


@attrs.frozen(kw_only=True, eq=False)
class Rotation:
    """Cosines and sines of a step's positions, [tokens, 1, head_dim] each, the second half equal to the first."""

    cos: torch.Tensor
    sin: torch.Tensor

    def rotate_(self, x: torch.Tensor) -> None:
        """Rotates `x` [tokens, heads, head_dim], whose pairs are its two halves, in place."""
        half = x.shape[-1] // 2
        crossed = x * self.sin
        x.mul_(self.cos)
        x[..., :half].sub_(crossed[..., half:])
        x[..., half:].add_(crossed[..., :half])


@attrs.frozen(kw_only=True, eq=False)
class RotaryEmbedding:
    """Rotary position embedding (Su et al., RoFormer, 2021)."""

    inverse_frequencies: torch.Tensor
    """fp32 [head_dim / 2]."""

    @classmethod
    def build(cls, rope: RopeConfig, head_dim: int) -> "RotaryEmbedding":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies = 1.0 / rope.theta**exponents
        return cls(inverse_frequencies=_stretched(frequencies, rope.scaling) if rope.scaling else frequencies)

    def rotation(self, positions: torch.Tensor) -> Rotation:
        angles = positions.to(torch.float32)[:, None, None] * self.inverse_frequencies.repeat(2)
        return Rotation(cos=angles.cos(), sin=angles.sin())


@attrs.frozen(kw_only=True, eq=False)
class SelfAttention:
    """Causal attention with grouped queries; where the family has them, queries and keys are normalised head by head."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv: Linear
    """Queries, keys and values merged."""
    output: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None

    def __call__(self, x: torch.Tensor, rotation: Rotation, cache: KvCache, plan: AttentionPlan) -> torch.Tensor:
        merged = self.qkv(x).unflatten(1, (-1, self.head_dim))
        queries, keys_values = merged[:, : self.heads], merged[:, self.heads :]
        if self.query_norm is not None and self.key_norm is not None:
            queries.copy_(self.query_norm(queries))
            keys_values[:, : self.kv_heads] = self.key_norm(keys_values[:, : self.kv_heads])
        rotation.rotate_(merged[:, : self.heads + self.kv_heads])
        cache.write(self.layer, plan.cells, keys_values.unflatten(1, (2, self.kv_heads)))
        attended = attend(cache, self.layer, queries.unflatten(1, (self.kv_heads, -1)), plan)
        return self.output(attended.reshape(x.shape[0], -1))


@attrs.frozen(kw_only=True, eq=False)
class GatedMlp:
    """SwiGLU (Shazeer, GLU Variants Improve Transformer, 2020)."""

    gate_up: Linear
    """Gate and up projection merged."""
    down: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(silu(gate).mul_(up))


@attrs.frozen(kw_only=True, eq=False)
class DecoderLayer:
    """Pre-normalised attention and MLP, each added to the residual stream."""

    attention_norm: RmsNorm
    attention: SelfAttention
    mlp_norm: RmsNorm
    mlp: GatedMlp

    def __call__(self, x: torch.Tensor, rotation: Rotation, cache: KvCache, plan: AttentionPlan) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, cache, plan)
        return x.add_(self.mlp(self.mlp_norm(x)))


@attrs.frozen(kw_only=True, eq=False)
class CausalLm:
    """Token ids to logits."""

    embedding: torch.Tensor
    """[vocabulary, hidden]."""
    rotary: RotaryEmbedding
    layers: tuple[DecoderLayer, ...]
    norm: RmsNorm
    head: Linear

    def hidden(self, token_ids: torch.Tensor, cache: KvCache, plan: AttentionPlan) -> torch.Tensor:
        """Runs all tokens of a step (int64 [tokens]), storing their keys and values: [tokens, hidden], not yet normalised."""
        x = self.embedding.index_select(0, token_ids)
        rotation = self.rotary.rotation(plan.positions)
        for layer in self.layers:
            x = layer(x, rotation, cache, plan)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, vocabulary], for the tokens that are worth it: the head is the largest matrix of a small model."""
        return self.head(self.norm(hidden))


def _stretched(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    match scaling:
        case Llama3Scaling():
            return _stretched_by_wavelength(frequencies, scaling)
        case LinearScaling(factor=factor):
            return frequencies / factor
        case FrequencyFactors(factors=factors):
            return frequencies / torch.tensor(factors, dtype=torch.float32)
        case _:
            assert_never(scaling)


def _stretched_by_wavelength(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Long wavelengths grow by `factor`, short ones stay, and those between are interpolated."""
    turns = scaling.original_context_tokens * frequencies / (2 * math.pi)
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = share.clamp(0.0, 1.0)
    return (1 - share) * frequencies / scaling.factor + share * frequencies
