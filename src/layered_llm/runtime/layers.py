"""The building blocks that decoder models share, over flat tokens in fp32.

Must not know: checkpoint names, families, slots, sampling.

A step's tokens are rows of one matrix [tokens, hidden], without padding and without a batch dimension.
"""

import attrs
import torch
from torch.nn.functional import rms_norm, silu

from layered_llm.runtime.attention import AttentionPlan, attend
from layered_llm.runtime.kv_cache import KvCache
from layered_llm.runtime.linear import Linear
from layered_llm.runtime.rotation_table import RotationTable


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
    """The rotation table as torch reads it."""

    table: RotationTable

    def rotation(self, positions: torch.Tensor) -> Rotation:
        """`positions` (int64 [tokens]) are at least one."""
        tables = self.table.covering(int(positions.max()) + 1)
        cos, sin = (torch.from_numpy(table)[positions].repeat(1, 2)[:, None] for table in tables)
        return Rotation(cos=cos, sin=sin)


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
