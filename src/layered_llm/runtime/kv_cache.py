"""The paged KV cache: keys and values of every computed token, by page.

Must not know: which slot owns a page, models, attention.

One array [layers, pages, page_size, 2, kv_heads, head_dim], fp32: a token's key and value lie side by side, so that one write
stores both and one gather of whole pages fetches both. It begins as zeros that the operating system supplies when a page is
first touched: a pool that is never filled is never paid for.
"""

import attrs
import numpy as np
import torch

from layered_llm.runtime.model_config import ModelConfig


@attrs.frozen(eq=False)
class KvCache:
    """Keys and values of all layers."""

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
        """A copy of `pages` (int64 [n]) of `layer`, one behind the other: [n * page_size, 2, kv_heads, head_dim]."""
        return self._pool[layer].index_select(0, pages).flatten(0, 1)
