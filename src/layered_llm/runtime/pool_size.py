"""How many pages the KV pool has, and what context fits it.

Must not know: torch, settings, how memory is measured.
"""

from typing import Final

import attrs

from layered_llm.runtime.device import DeviceError

DEFAULT_CONTEXTS: Final = 4
"""Full contexts that the pool holds where nobody says how many pages it has."""
_DEFAULT_SHARE: Final = 2
"""Such a pool takes one part in this many of the free memory at most."""
_ACTIVATION_BYTES: Final = 256 << 20
"""Left free for a step's activations."""


@attrs.frozen(kw_only=True)
class PoolSize:
    """A pool, and the longest context of one choice in it."""

    pages: int
    context_tokens: int


def size_pool(
    *,
    num_pages: int | None,
    page_size_tokens: int,
    page_bytes: int,
    context_tokens: int,
    weight_bytes: int,
    free_bytes: int | None,
) -> PoolSize:
    """`free_bytes` is what weights and pool may take together; None means unknown, and nothing is checked.

    Raises DeviceError where they do not fit.
    """
    left_bytes = None if free_bytes is None else free_bytes - weight_bytes - _ACTIVATION_BYTES
    fitting = None if left_bytes is None else max(0, left_bytes // page_bytes)
    pages = num_pages if num_pages is not None else _default_pages(context_tokens, page_size_tokens, fitting)
    if pages < 1 or (fitting is not None and pages > fitting):
        raise DeviceError(
            f"the KV pool needs {_gib(max(pages, 1) * page_bytes)} for {max(pages, 1)} pages and the weights "
            f"{_gib(weight_bytes)}, but {_gib(free_bytes or 0)} of memory are free: at most {fitting or 0} pages fit"
        )
    return PoolSize(pages=pages, context_tokens=min(context_tokens, pages * page_size_tokens))


def _default_pages(context_tokens: int, page_size_tokens: int, fitting: int | None) -> int:
    wanted = DEFAULT_CONTEXTS * -(-context_tokens // page_size_tokens)
    return wanted if fitting is None else min(wanted, fitting // _DEFAULT_SHARE)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
