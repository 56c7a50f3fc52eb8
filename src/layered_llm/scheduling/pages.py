"""Pages of the KV cache: who may take how many, and when they come back.

Must not know: choices, the contents of steps, token ids.

Invariants: a page is free, owned or in quarantine, and only in one of them. What is reserved and not yet allocated is free,
so an allocation out of a reservation cannot fail.
"""

from collections.abc import Iterable

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import PageId, StepId
from layered_llm.scheduling.pools import PoolCensus, QuarantinePool


class PageAllocator:
    """Counts in whole pages only: tokens are rounded up for each choice, as its last page is never shared."""

    def __init__(self, *, pages: int, page_size_tokens: int) -> None:
        self._total = pages
        self._page_size_tokens = page_size_tokens
        self._pool = QuarantinePool([PageId(page) for page in reversed(range(pages))])
        self._reserved = 0

    @property
    def total(self) -> int:
        return self._total

    @property
    def page_size_tokens(self) -> int:
        return self._page_size_tokens

    @property
    def reserved(self) -> int:
        """Pages promised and not yet allocated; they are free, and nobody else's."""
        return self._reserved

    @property
    def free(self) -> int:
        return self._pool.free_count

    @property
    def quarantined(self) -> int:
        return self._pool.quarantined_count

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_size_tokens)

    def can_reserve(self, pages: int) -> bool:
        return pages <= self._pool.free_count - self._reserved

    def reserve(self, pages: int) -> None:
        if not self.can_reserve(pages):
            raise InvariantViolated(f"{pages} pages reserved, {self._pool.free_count - self._reserved} are to be had")
        self._reserved += pages

    def allocate(self, pages: int) -> list[PageId]:
        """Pages out of the caller's reservation, which shrinks by them."""
        self._reserved -= pages
        return self._pool.take(pages)

    def give_back(self, pages: Iterable[PageId], *, reserved: int, last_step: StepId) -> None:
        """Ends an ownership: its pages, the rest of its reservation, and the last step that names the pages (0: none)."""
        self._reserved -= reserved
        self._pool.give_back(pages, last_step)

    def acknowledge(self, step: StepId) -> None:
        self._pool.acknowledge(step)

    def census(self) -> PoolCensus[PageId]:
        return self._pool.census()
