"""How many pages the KV pool has, and what context fits it.

Must not know: torch, settings, how memory is measured.
"""

from typing import Final

import attrs
import numpy as np

from layered_llm.runtime.device import DeviceError
from layered_llm.runtime.model_config import ModelConfig

_CONTEXTS_WITHOUT_KNOWLEDGE: Final = 4
"""Full contexts that the pool holds where nobody says how many pages it has, and nobody knows how much memory is free."""
_ACTIVATION_BYTES: Final = 256 << 20
"""Left free for a step's activations."""


@attrs.frozen(kw_only=True)
class PoolSize:
    """A pool, and the longest context of one choice in it."""

    pages: int
    context_tokens: int


@attrs.frozen(kw_only=True)
class PoolWish:
    """What is wanted of a pool."""

    num_pages: int | None
    """None: as many as `memory_ratio` of the free memory holds, but no more than all slots can fill."""
    memory_ratio: float
    page_size_tokens: int
    page_bytes: int
    context_tokens: int
    slots: int


def size_pool(wish: PoolWish, *, weight_bytes: int, free_bytes: int | None) -> PoolSize:
    """`free_bytes` is what weights and pool may take together; None means unknown, and nothing is checked.

    Memory is taken when a page is first used: a pool that is never filled is never paid for. Raises DeviceError where weights
    and pool do not fit.
    """
    left_bytes = None if free_bytes is None else max(0, free_bytes - weight_bytes - _ACTIVATION_BYTES)
    fitting = None if left_bytes is None else left_bytes // wish.page_bytes
    pages = wish.num_pages if wish.num_pages is not None else _default_pages(wish, left_bytes)
    if pages < 1 or (fitting is not None and pages > fitting):
        raise DeviceError(
            f"the KV pool needs {_gib(max(pages, 1) * wish.page_bytes)} for {max(pages, 1)} pages and the weights "
            f"{_gib(weight_bytes)}, but {_gib(free_bytes or 0)} of memory are free: at most {fitting or 0} pages fit"
        )
    return PoolSize(pages=pages, context_tokens=min(wish.context_tokens, pages * wish.page_size_tokens))


def page_bytes(config: ModelConfig, page_size_tokens: int, dtype: str) -> int:
    """Memory of one page with all layers, of numbers of `dtype`."""
    return config.layer_count * page_size_tokens * 2 * config.kv_size * np.dtype(dtype).itemsize


def chosen_context(model_tokens: int, override: int | None) -> int:
    """Raises DeviceError for an `override` that the model was not made for."""
    if override is not None and override > model_tokens:
        raise DeviceError(f"a context of {override} tokens was asked for, but the model's own is {model_tokens}")
    return override or model_tokens


def _default_pages(wish: PoolWish, left_bytes: int | None) -> int:
    context_pages = -(-wish.context_tokens // wish.page_size_tokens)
    if left_bytes is None:
        return min(wish.slots, _CONTEXTS_WITHOUT_KNOWLEDGE) * context_pages
    return min(wish.slots * context_pages, int(left_bytes * wish.memory_ratio) // wish.page_bytes)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
