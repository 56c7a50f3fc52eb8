"""The paged KV cache of the generated kernels: [layers, pages, kv_heads, keys or values, page_size, head_dim].

Must not know: which slot owns a page, kernels.

A head's keys of one page lie side by side, its values behind them, so that attention reads whole stretches of memory. It begins
as zeros that the operating system supplies when a page is first touched: a pool that is never filled is never paid for.

That holds for small pages alone. numpy asks for huge ones, and each layer has a stretch of its own: the first token of a server
would clear 2 MiB in each layer, 60 MB of the default model's, in place of the 0.7 MB that its page takes.
"""

import math
import mmap
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.runtime.cpu.simd.memory_blocks import address_of, mapped
from layered_llm.runtime.models.model_config import ModelConfig


@attrs.frozen(eq=False)
class KvPool:
    """Keys and values of all layers, fp32 or fp16."""

    _numbers: NDArray[Any]

    @classmethod
    def allocate(cls, config: ModelConfig, *, pages: int, page_size_tokens: int, dtype: str) -> "KvPool":
        """`dtype` is float32 or float16. Raises MemoryError where the address space cannot hold it."""
        shape = (config.layer_count, pages, config.kv_heads, 2, page_size_tokens, config.head_dim)
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        memory = mapped(size_bytes, mmap.MADV_NOHUGEPAGE, f"a KV pool of {size_bytes} bytes")
        return cls(memory.view(dtype).reshape(shape))

    @property
    def address(self) -> int:
        return address_of(self._numbers)

    @property
    def layer_bytes(self) -> int:
        return self._numbers.nbytes // len(self._numbers)

    @property
    def number_bytes(self) -> int:
        return self._numbers.itemsize

    @property
    def page_size_tokens(self) -> int:
        size: int = self._numbers.shape[4]
        return size
