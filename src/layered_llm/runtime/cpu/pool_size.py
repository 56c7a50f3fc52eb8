"""How many pages the KV pool has, and what context fits it.

Must not know: torch, how memory is measured.
"""

from typing import Final

import numpy as np

from layered_llm.domain.limits import RuntimeLimits
from layered_llm.runtime.device.device import DeviceError
from layered_llm.runtime.device.options import RuntimeOptions
from layered_llm.runtime.models.model_config import ModelConfig

_CONTEXTS_WITHOUT_KNOWLEDGE: Final = 4
"""Full contexts that the pool holds where nobody says how many pages it has, and nobody knows how much memory is free."""
_ACTIVATION_BYTES: Final = 256 << 20
"""Left free for a step's activations."""


def size_pool(
    options: RuntimeOptions,
    *,
    page_bytes: int,
    context_tokens: int,
    vocabulary_size: int,
    weight_bytes: int = 0,
    free_bytes: int | None = None,
) -> RuntimeLimits:
    """What a device can hold; its context is `context_tokens`, or what all pages hold if that is less.

    `free_bytes` is what weights and pool may take together; None means unknown, and nothing is checked. Memory is taken when a
    page is first used: a pool that is never filled is never paid for. Raises DeviceError where weights and pool do not fit.
    """
    left_bytes = None if free_bytes is None else max(0, free_bytes - weight_bytes - _ACTIVATION_BYTES)
    fitting = None if left_bytes is None else left_bytes // page_bytes
    pages = options.num_pages
    if pages is None:
        pages = _default_pages(options, -(-context_tokens // options.page_size_tokens), left_bytes, page_bytes)
    if pages < 1 or (fitting is not None and pages > fitting):
        raise DeviceError(
            f"the KV pool needs {_gib(max(pages, 1) * page_bytes)} for {max(pages, 1)} pages and the weights "
            f"{_gib(weight_bytes)}, but {_gib(free_bytes or 0)} of memory are free: at most {fitting or 0} pages fit"
        )
    return RuntimeLimits(
        pages=pages,
        page_size_tokens=options.page_size_tokens,
        slots=options.max_slots,
        context_tokens=min(context_tokens, pages * options.page_size_tokens),
        vocabulary_size=vocabulary_size,
    )


def bytes_of_page(config: ModelConfig, page_size_tokens: int, dtype: str) -> int:
    """Memory of one page with all layers, of numbers of `dtype`."""
    return config.layer_count * page_size_tokens * 2 * config.kv_size * np.dtype(dtype).itemsize


def chosen_context(model_tokens: int, override: int | None) -> int:
    """Raises DeviceError for an `override` that the model was not made for."""
    if override is not None and override > model_tokens:
        raise DeviceError(f"a context of {override} tokens was asked for, but the model's own is {model_tokens}")
    return override or model_tokens


def _default_pages(options: RuntimeOptions, context_pages: int, left_bytes: int | None, page_bytes: int) -> int:
    if left_bytes is None:
        return min(options.max_slots, _CONTEXTS_WITHOUT_KNOWLEDGE) * context_pages
    return min(options.max_slots * context_pages, int(left_bytes * options.memory_ratio) // page_bytes)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
