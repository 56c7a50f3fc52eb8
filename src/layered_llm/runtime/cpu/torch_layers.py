"""The building blocks that decoder models share, over flat tokens in fp32.

Must not know: checkpoint names, families, slots, sampling.

A step's tokens are rows of one matrix [tokens, hidden], without padding and without a batch dimension.
"""

from typing import Final

import attrs
import torch
from torch.nn.functional import linear, rms_norm, silu

from layered_llm.runtime.cpu.torch_attention import AttentionPlan, KvCache, attend
from layered_llm.runtime.models.rotation_table import RotationTable

_EXPECTED_TOKENS: Final = 8
"""The order of weights is chosen for about so many tokens in a step; others are only a little slower for it."""


@attrs.frozen(eq=False)
class Linear:
    """x W^T + b in fp32 for x [tokens, inputs], with weights in the order in which oneDNN's kernels read them.

    Reordered once at load, a matrix is read two to three times as fast as through `torch.nn.functional.linear`, at 1 to 32
    tokens, and as fast at hundreds. The operators are those that torch's own compiler emits for frozen weights; where torch is
    built without oneDNN the plain function does the work.
    """

    _weight: torch.Tensor
    """[outputs, inputs], opaque where it is packed."""
    _bias: torch.Tensor | None
    _is_packed: bool

    @classmethod
    def build(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> "Linear":
        """Packs `weight` [outputs, inputs] into memory of its own."""
        if not torch.backends.mkldnn.is_available():
            return cls(weight, bias, False)
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight, _EXPECTED_TOKENS), bias, True)  # noqa: SLF001 - an operator

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self._is_packed:
            return linear(x, self._weight, self._bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")  # noqa: SLF001 - an operator


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

    @classmethod
    def at(cls, positions: torch.Tensor, table: RotationTable) -> "Rotation":
        """`positions` (int64 [tokens]) are at least one."""
        tables = table.covering(int(positions.max()) + 1)
        cos, sin = (torch.from_numpy(each)[positions].repeat(1, 2)[:, None] for each in tables)
        return cls(cos=cos, sin=sin)

    def rotate_(self, x: torch.Tensor) -> None:
        """Rotates `x` [tokens, heads, head_dim], whose pairs are its two halves, in place."""
        half = x.shape[-1] // 2
        crossed = x * self.sin
        x.mul_(self.cos)
        x[..., :half].sub_(crossed[..., half:])
        x[..., half:].add_(crossed[..., :half])


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
    rotations: RotationTable
    layers: tuple[DecoderLayer, ...]
    norm: RmsNorm
    head: Linear

    def hidden(self, token_ids: torch.Tensor, cache: KvCache, plan: AttentionPlan) -> torch.Tensor:
        """Runs all tokens of a step (int64 [tokens]), storing their keys and values: [tokens, hidden], not yet normalised."""
        x = self.embedding.index_select(0, token_ids)
        rotation = Rotation.at(plan.positions, self.rotations)
        for layer in self.layers:
            x = layer(x, rotation, cache, plan)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, vocabulary], for the tokens that are worth it: the head is the largest matrix of a small model."""
        return self.head(self.norm(hidden))
