"""Pages of the KV cache: which are free, which are kept for a prefix that may come again, and when they come back.

Must not know: choices, the contents of steps, policy.

Invariants: a page is free, owned by one choice, in the prefix tree, or in quarantine, and only in one of them. What is
`available` can be taken at once: no step in flight names it, since a page comes back, and a lock on a prefix is given back,
only with the acknowledgement of the last step that names it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import PageId, StepId
from layered_llm.domain.placement import CacheRoot
from layered_llm.scheduling.prefix_tree import TOKEN_BYTES, Node, Prefix, PrefixTree

IdT = TypeVar("IdT", bound=int)

NO_STEP: Final = StepId(0)
"""Before the first step."""


@attrs.frozen(kw_only=True)
class PoolCensus(Generic[IdT]):
    """Where the ids that nobody holds are at one moment."""

    free: tuple[IdT, ...]
    quarantined: tuple[tuple[StepId, tuple[IdT, ...]], ...]
    """For each step in flight the ids that wait for it."""


@attrs.define(eq=False)
class QuarantinePool(Generic[IdT]):
    """Lends ids, the last one returned first: its memory is the likeliest to be in a cache."""

    free: list[IdT]
    _quarantine: dict[StepId, list[IdT]] = attrs.field(init=False, factory=dict)
    _acknowledged: StepId = attrs.field(init=False, default=NO_STEP)

    @property
    def quarantined_count(self) -> int:
        return sum(map(len, self._quarantine.values()))

    def take(self, count: int) -> list[IdT]:
        """Raises InvariantViolated when fewer are free: whoever asks has looked before."""
        rest = len(self.free) - count
        if rest < 0:
            raise InvariantViolated(f"{count} ids asked for, {len(self.free)} are free")
        taken = self.free[rest:]
        del self.free[rest:]
        return taken

    def give_back(self, ids: Iterable[IdT], last_step: StepId) -> None:
        """`last_step` is the last step that names the ids, 0 for none."""
        if last_step <= self._acknowledged:
            self.free.extend(ids)
        else:
            self._quarantine.setdefault(last_step, []).extend(ids)

    def acknowledge(self, step: StepId) -> None:
        """Steps are acknowledged one by one, in order."""
        self._acknowledged = step
        self.free.extend(self._quarantine.pop(step, ()))

    def census(self) -> PoolCensus[IdT]:
        quarantined = tuple((step, tuple(ids)) for step, ids in self._quarantine.items())
        return PoolCensus(free=tuple(self.free), quarantined=quarantined)


def count_everywhere(census: PoolCensus[IdT], held: Sequence[IdT]) -> dict[IdT, int]:
    """How often each id occurs among the free, the quarantined and the held ones."""
    counts: dict[IdT, int] = {}
    for ids in (census.free, held, *(ids for _, ids in census.quarantined)):
        for one in ids:
            counts[one] = counts.get(one, 0) + 1
    return counts


class PageStore:
    """Counts in whole pages only: tokens are rounded up for each choice, as its last page is never shared."""

    def __init__(self, *, pages: int, page_size_tokens: int, keeps_prefixes: bool) -> None:
        self.total = pages
        self.page_size_tokens = page_size_tokens
        self.keeps_prefixes = keeps_prefixes
        self._pool = QuarantinePool([PageId(page) for page in reversed(range(pages))])
        self._tree = PrefixTree(page_size_tokens)
        self._unlocks: dict[StepId, list[tuple[Node, int]]] = {}
        """Locks that wait for a step in flight, with the pages that each may set free."""
        self.acknowledged = NO_STEP
        """The last step that is done."""
        self.evicted = 0
        """Cached pages that were given to somebody else since the start."""

    @property
    def free(self) -> int:
        return len(self._pool.free)

    @property
    def cached(self) -> int:
        """Pages that only the prefix tree holds."""
        return self._tree.evictable_pages

    @property
    def available(self) -> int:
        return len(self._pool.free) + self._tree.evictable_pages

    @property
    def quarantined(self) -> int:
        return self._pool.quarantined_count

    @property
    def returning(self) -> int:
        """Most pages that become available with the steps in flight; less come where prefixes are held by others too."""
        return self._pool.quarantined_count + sum(pages for _, pages in self._waiting_unlocks())

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size_tokens)

    def find(self, cache_root: CacheRoot, token_ids: bytes) -> Prefix:
        """Locks the longest kept prefix. One token at least is left to compute, as the next one is sampled from its logits."""
        return self._tree.lock(cache_root, token_ids, self._sharable_pages(token_ids))

    def find_tokens(self, cache_root: CacheRoot, token_ids: bytes) -> int:
        """How many tokens `find` would find."""
        return self._tree.peek(cache_root, token_ids, self._sharable_pages(token_ids)) * self.page_size_tokens

    def keep(self, place: Node, token_ids: bytes, pages: list[PageId]) -> Prefix:
        """Adds pages full of computed tokens to the tree, after a place that is locked; see `PrefixTree.extend`."""
        return self._tree.extend(place, token_ids, pages)

    def forget(self, cache_root: CacheRoot, token_ids: bytes) -> None:
        """Nobody is to find a prefix that begins with the first page of `token_ids`: what it holds cannot be used."""
        self._pool.give_back(self._tree.forget(cache_root, token_ids), NO_STEP)

    def take(self, count: int) -> list[PageId]:
        """Raises InvariantViolated when fewer are available. Evicts what is missing and not a page more."""
        shortfall = count - len(self._pool.free)
        if shortfall > 0:
            self.evicted += self._evict(shortfall)
        return self._pool.take(count)

    def give_back(self, pages: Iterable[PageId], last_step: StepId) -> None:
        """Ends an ownership; `last_step` is the last step that names the pages, 0 for none."""
        self._pool.give_back(pages, last_step)

    def unlock(self, place: Node, pages: int, last_step: StepId) -> None:
        """Gives the lock on a prefix of `pages` pages back, when `last_step`, the last step that names them, is done."""
        if last_step <= self.acknowledged:
            self._tree.unlock(place)
        else:
            self._unlocks.setdefault(last_step, []).append((place, pages))

    def acknowledge(self, step: StepId) -> None:
        self.acknowledged = step
        self._pool.acknowledge(step)
        for place, _ in self._unlocks.pop(step, ()):
            self._tree.unlock(place)

    def flush(self) -> int:
        """Frees every page that only the tree holds; how many these were."""
        return self._evict(self._tree.evictable_pages)

    def census(self) -> PoolCensus[PageId]:
        return self._pool.census()

    def nodes(self) -> Iterator[Node]:
        return self._tree.nodes()

    def places_to_unlock(self) -> list[Node]:
        """Places whose locks wait for a step in flight."""
        return [place for place, _ in self._waiting_unlocks()]

    def _waiting_unlocks(self) -> Iterator[tuple[Node, int]]:
        return (one for unlocks in self._unlocks.values() for one in unlocks)

    def _sharable_pages(self, token_ids: bytes) -> int:
        tokens = len(token_ids) // TOKEN_BYTES
        return (tokens - 1) // self.page_size_tokens if self.keeps_prefixes else 0

    def _evict(self, count: int) -> int:
        evicted = self._tree.evict(count)
        self._pool.give_back(evicted, NO_STEP)
        return len(evicted)
