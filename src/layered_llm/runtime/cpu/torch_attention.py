"""The paged KV cache, and attention of one step over it: mixed rows of prefill chunks and decodes.

Must not know: slots, which of them owns a page, models, sampling.

Everything that is the same in all layers is computed once, in the plan. Rows of one token are batched: their pages are
gathered, padded to the longest row of their group, and masked; groups hold rows of similar length, so that a long row does
not make short ones pay. A row of more tokens attends by itself, in blocks, each to the tokens up to its own end. Grouped
query heads are never expanded: a key is read once for all queries that share it.
"""

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from layered_llm.runtime.device.step_inputs import Int64s, StepInputs
from layered_llm.runtime.models.model_config import ModelConfig

_BLOCK_TOKENS: Final = 256
"""Queries of one block of a chunk: bounds the mask's size and the part of the square above the diagonal that is wasted."""
_PADDING_RATIO: Final = 2
"""A group of decodes holds no row that is shorter than its longest one divided by this."""


@attrs.frozen(eq=False)
class KvCache:
    """Keys and values of every computed token: fp32 [layers, pages, page_size, 2, kv_heads, head_dim].

    A token's key and value lie side by side, so that one write stores both and one gather of whole pages fetches both.
    It begins as zeros that the operating system supplies when a page is first touched: a pool that is never filled is
    never paid for.
    """

    _pool: torch.Tensor

    @classmethod
    def allocate(cls, config: ModelConfig, *, pages: int, page_size_tokens: int) -> "KvCache":
        """Raises MemoryError where the address space cannot hold it."""
        shape = (config.layer_count, pages, page_size_tokens, 2, config.kv_heads, config.head_dim)
        return cls(torch.from_numpy(np.zeros(shape, np.float32)))

    def write(self, layer: int, cells: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Stores keys and values [tokens, 2, kv_heads, head_dim] of `layer` in `cells` (int64 [tokens])."""
        self._pool[layer].flatten(0, 1).index_copy_(0, cells, keys_values)

    def gather(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """A copy of `pages` (int64 [n]) of `layer`, one after the other: [n * page_size, 2, kv_heads, head_dim]."""
        return self._pool[layer].index_select(0, pages).flatten(0, 1)


@attrs.frozen(kw_only=True, eq=False)
class DecodeGroup:
    """Rows of one token each."""

    tokens: torch.Tensor
    """int64 [rows]: the rows' places among the step's tokens."""
    pages: torch.Tensor
    """int64 [rows * pages of the longest row]."""
    mask: torch.Tensor
    """fp32 [rows, 1, 1, length]: 0 for a token that the row attends to, else minus infinity."""
    hidden: torch.Tensor
    """int64: places among all cells of `pages` that their row does not attend to."""


@attrs.frozen(kw_only=True, eq=False)
class ChunkBlock:
    """Neighbouring tokens of one row."""

    first: int
    last: int
    """Place of the block's first token among the step's tokens, and of its last one, plus 1."""
    pages: torch.Tensor
    """int64: the row's pages up to the block's end."""
    mask: torch.Tensor
    """fp32 [tokens, length], additive."""


@attrs.frozen(kw_only=True, eq=False)
class AttentionPlan:
    """One step's tokens, and who attends to what."""

    positions: torch.Tensor
    """int64 [tokens]."""
    cells: torch.Tensor
    """int64 [tokens]: where each token's key and value go."""
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[ChunkBlock, ...]


def plan_attention(inputs: StepInputs, *, page_size_tokens: int) -> AttentionPlan:
    """The plan for the rows of a step."""
    firsts = np.cumsum(inputs.counts) - inputs.counts
    decodes = np.flatnonzero(inputs.counts == 1)
    groups = [
        _decode_group(inputs, firsts, group, page_size_tokens=page_size_tokens)
        for group in _similar_lengths(decodes, inputs.ends)
    ]
    blocks = [
        _chunk_block(inputs, int(firsts[row]), int(row), offset, page_size_tokens=page_size_tokens)
        for row in np.flatnonzero(inputs.counts > 1)
        for offset in range(0, int(inputs.counts[row]), _BLOCK_TOKENS)
    ]
    return AttentionPlan(
        positions=torch.from_numpy(inputs.positions),
        cells=torch.from_numpy(inputs.cells),
        decodes=tuple(groups),
        chunks=tuple(blocks),
    )


def attend(cache: KvCache, layer: int, queries: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """Attention of `queries` [tokens, kv_heads, queries for each kv head, head_dim], whose keys and values are in the cache.

    Returns the same shape.
    """
    if not plan.chunks and len(plan.decodes) == 1 and plan.decodes[0].tokens.numel() == queries.shape[0]:
        return _attend_decodes(cache, layer, queries, plan.decodes[0])
    result = torch.empty_like(queries)
    for group in plan.decodes:
        result.index_copy_(0, group.tokens, _attend_decodes(cache, layer, queries.index_select(0, group.tokens), group))
    for block in plan.chunks:
        result[block.first : block.last] = _attend_block(cache, layer, queries[block.first : block.last], block)
    return result


def _attend_decodes(cache: KvCache, layer: int, queries: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
    gathered = cache.gather(layer, group.pages)
    gathered.index_fill_(0, group.hidden, 0.0)  # whoever had the cell may have left a NaN, and 0 times NaN is NaN
    keys, values = gathered.unflatten(0, (queries.shape[0], -1)).transpose(1, 3).unbind(2)
    return scaled_dot_product_attention(queries, keys, values, attn_mask=group.mask)


def _attend_block(cache: KvCache, layer: int, queries: torch.Tensor, block: ChunkBlock) -> torch.Tensor:
    gathered = cache.gather(layer, block.pages)[: block.mask.shape[1]]
    by_head = queries.permute(1, 2, 0, 3)
    keys, values = (part.transpose(0, 1).unsqueeze(1).expand(-1, by_head.shape[1], -1, -1) for part in gathered.unbind(1))
    return scaled_dot_product_attention(by_head, keys, values, attn_mask=block.mask).permute(2, 0, 1, 3)


def _similar_lengths(rows: Int64s, ends: Int64s) -> Iterator[Int64s]:
    """Splits `rows` so that no group's longest row is over `_PADDING_RATIO` times its shortest one."""
    left = rows[np.argsort(-ends[rows], kind="stable")]
    while left.size:
        size = int(np.count_nonzero(ends[left] * _PADDING_RATIO >= ends[left[0]]))
        yield np.sort(left[:size])
        left = left[size:]


def _decode_group(inputs: StepInputs, firsts: Int64s, group: Int64s, *, page_size_tokens: int) -> DecodeGroup:
    ends = inputs.ends[group]
    pages = -(-int(ends.max()) // page_size_tokens)
    hidden = np.arange(pages * page_size_tokens) >= ends[:, None]
    return DecodeGroup(
        tokens=torch.from_numpy(firsts[group]),
        pages=torch.from_numpy(inputs.page_tables[inputs.slots[group], :pages].reshape(-1).astype(np.int64)),
        mask=_additive(hidden)[:, None, None, :],
        hidden=torch.from_numpy(np.flatnonzero(hidden)),
    )


def _chunk_block(inputs: StepInputs, first: int, row: int, offset: int, *, page_size_tokens: int) -> ChunkBlock:
    count = min(_BLOCK_TOKENS, int(inputs.counts[row]) - offset)
    start = int(inputs.starts[row]) + offset
    hidden = np.arange(start + count) > np.arange(start, start + count)[:, None]
    return ChunkBlock(
        first=first + offset,
        last=first + offset + count,
        pages=torch.from_numpy(
            inputs.page_tables[inputs.slots[row], : -(-(start + count) // page_size_tokens)].astype(np.int64)
        ),
        mask=_additive(hidden),
    )


def _additive(hidden: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> torch.Tensor:
    return torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0)))
