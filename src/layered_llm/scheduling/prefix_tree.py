"""Which pages hold the keys and values of which tokens: a radix tree over full pages (RadixAttention, Zheng et al.,
arXiv:2312.07104).

Must not know: choices, steps, which pages are free, what a token means.

A prefix is given as a packed int32 column, as messages carry it, and compared in whole pages; a rest that fills no page is
ignored. Each root has a tree of its own, so that prefixes of different roots never meet.

Invariants: a page is in one node. Siblings differ in their first page. A lock is held at the end of a node and counts in
every node above it, so that a node without locks has no locked node below. The leaf that was used longest ago goes first.
"""

import heapq
import itertools
from collections.abc import Iterator
from typing import Final

import attrs

from layered_llm.domain.ids import PageId
from layered_llm.domain.placement import CacheRoot

TOKEN_BYTES: Final = 4
"""Of one token in a packed column."""
_STALE_ENTRIES: Final = 64
"""As many entries of the heap may be out of date before it is looked through, whatever the size of the tree."""


@attrs.define(eq=False, kw_only=True)
class Node:
    """An edge of the tree and what lies at its end; a tree's root is a node without pages."""

    cache_root: CacheRoot
    parent: "Node | None"
    key: bytes
    """Tokens of `pages`, packed."""
    pages: list[PageId]
    children: "dict[bytes, Node]" = attrs.field(factory=dict)
    """By the tokens of their first page."""
    locks: int = 0
    """Holders that end in this node or below."""
    last_use: int = 0
    """Reading of the tree's logical clock; no two nodes have the same, as the clock ticks with each node that is touched."""

    @property
    def is_evictable(self) -> bool:
        """A leaf that nobody holds; an evicted node is none, since it has no parent any more."""
        return not self.locks and not self.children and self.parent is not None


@attrs.frozen(eq=False)
class Prefix:
    """A place in the tree on which the receiver has a lock, and the pages that were passed on the way there."""

    place: Node
    pages: list[PageId]


class PrefixTree:
    """Finds, keeps and evicts prefixes. Every operation but `evict` takes time in proportion to the prefix, not to the tree."""

    def __init__(self, page_size_tokens: int) -> None:
        self._page_bytes = page_size_tokens * TOKEN_BYTES
        self._roots: dict[CacheRoot, Node] = {}
        self._forgotten: set[Node] = set()
        """Roots of what is not found any more but held by somebody, or not yet evicted."""
        self._clock = itertools.count(1)
        self._leaves: list[tuple[int, Node]] = []
        """A heap of (last use, node): every evictable leaf, and entries that are out of date."""
        self._nodes = 0
        self.evictable_pages = 0
        """Pages of nodes that nobody holds: all of them can be evicted."""

    def lock(self, cache_root: CacheRoot, key: bytes, max_pages: int) -> Prefix:
        """The longest known prefix of `key`, of at most `max_pages` pages, locked until `unlock` is called with its place."""
        if cache_root not in self._roots:
            self._roots[cache_root] = Node(cache_root=cache_root, parent=None, key=b"", pages=[])
        place, pages = self._descend(self._roots[cache_root], key, max_pages)
        self._add_locks(place, None)
        return Prefix(place, pages)

    def peek(self, cache_root: CacheRoot, key: bytes, max_pages: int) -> int:
        """How many pages `lock` would find. Changes nothing."""
        root = self._roots.get(cache_root)
        return 0 if root is None else self._walk(root, key, max_pages)[1]

    def extend(self, place: Node, key: bytes, pages: list[PageId]) -> Prefix:
        """Adds `pages`, which hold the tokens `key`, after `place`, and moves one lock from there to their end.

        Where the tree knows some of the tokens already its own pages stay: the returned ones stand for `pages`, one for one,
        and those that differ from the given ones are at their front.
        """
        end, known = self._descend(place, key, len(pages))
        added = pages[len(known) :]
        if added:
            end = self._append(
                end, key[len(known) * self._page_bytes :], added, is_extendable=end is place and place.locks == 1
            )
        self._add_locks(end, place)
        return Prefix(end, known + added)

    def unlock(self, place: Node) -> None:
        """Gives one lock back."""
        node: Node | None = place
        while node is not None:
            node.locks -= 1
            node.last_use = next(self._clock)
            if not node.locks:
                self.evictable_pages += len(node.pages)
                self._offer(node)
            node = node.parent

    def evict(self, count: int) -> list[PageId]:
        """Forgets `count` pages, or all that can be evicted where these are fewer."""
        evicted: list[PageId] = []
        while len(evicted) < count and self._leaves:
            last_use, node = heapq.heappop(self._leaves)
            if node.is_evictable and node.last_use == last_use:
                kept = max(0, len(node.pages) - (count - len(evicted)))
                evicted += node.pages[kept:]
                self._cut(node, kept)
        self.evictable_pages -= len(evicted)
        return evicted

    def forget(self, cache_root: CacheRoot, key: bytes) -> list[PageId]:
        """Nothing that begins with the first page of `key` is found any more; the pages of it that nobody holds.

        The others stay where they are, in a tree that nobody looks into, until they are evicted.
        """
        root = self._roots.get(cache_root)
        top = None if root is None else root.children.pop(key[: self._page_bytes], None)
        if root is None or top is None:
            return []
        root.locks -= top.locks
        hidden = Node(cache_root=cache_root, parent=None, key=b"", pages=[], locks=top.locks)
        top.parent = hidden
        self._attach(top)
        self._forgotten.add(hidden)
        self._offer(root)
        freed: list[PageId] = []
        for node in reversed(list(_with_descendants(top))):
            if node.is_evictable:
                freed += node.pages
                self._cut(node, 0)
        self.evictable_pages -= len(freed)
        return freed

    def nodes(self) -> Iterator[Node]:
        """Every node, a parent before its children."""
        for root in (*self._roots.values(), *self._forgotten):
            yield from _with_descendants(root)

    def _descend(self, node: Node, key: bytes, max_pages: int) -> tuple[Node, list[PageId]]:
        """The end of the known part of `key` below `node`, made the end of a node, and the pages up to it."""
        path, count = self._walk(node, key, max_pages)
        if not path:
            return node, []
        pages: list[PageId] = []
        for passed in path:
            pages += passed.pages
        surplus = len(pages) - count
        if not surplus:
            return path[-1], pages
        return self._split(path[-1], len(path[-1].pages) - surplus), pages[:count]

    def _walk(self, node: Node, key: bytes, max_pages: int) -> tuple[list[Node], int]:
        """The nodes along `key`, and how many of their pages agree with it; only the last node may agree in part.

        Where each node has one page nothing is compared: it was found by that page.
        """
        size, at = self._page_bytes, 0
        end = min(max_pages, len(key) // size) * size
        path: list[Node] = []
        while at < end:
            child = node.children.get(key[at : at + size])
            if child is None:
                break
            path.append(child)
            length = len(child.key)
            if length != size and not (at + length <= end and key.startswith(child.key, at)):
                at += self._common_pages(child.key, key[at : min(end, at + length)]) * size
                break
            node, at = child, at + length
        return path, at // size

    def _common_pages(self, left: bytes, right: bytes) -> int:
        """Full pages in which two keys agree from their start on: at least one. By bisection, as comparing bytes is fast."""
        size = self._page_bytes
        low, high = 1, min(len(left), len(right)) // size
        while low < high:
            middle = (low + high + 1) // 2
            if left[low * size : middle * size] == right[low * size : middle * size]:
                low = middle
            else:
                high = middle - 1
        return low

    def _split(self, node: Node, count: int) -> Node:
        """Makes the first `count` pages of `node` a node above it, so that whoever holds `node` still ends where it did."""
        cut = count * self._page_bytes
        upper = Node(
            cache_root=node.cache_root,
            parent=node.parent,
            key=node.key[:cut],
            pages=node.pages[:count],
            locks=node.locks,
            last_use=next(self._clock),
        )
        self._attach(upper)
        node.key, node.pages, node.parent = node.key[cut:], node.pages[count:], upper
        self._attach(node)
        self._nodes += 1
        return upper

    def _append(self, place: Node, key: bytes, pages: list[PageId], *, is_extendable: bool) -> Node:
        """A leaf that only its extender holds grows by itself, so that an output is one edge and not one for each page."""
        if is_extendable and not place.children and place.parent is not None:
            place.key += key
            place.pages += pages
            return place
        leaf = Node(cache_root=place.cache_root, parent=place, key=key, pages=pages, last_use=next(self._clock))
        self._attach(leaf)
        self._nodes += 1
        self.evictable_pages += len(pages)
        return leaf

    def _attach(self, node: Node) -> None:
        if node.parent is not None:
            node.parent.children[node.key[: self._page_bytes]] = node

    def _add_locks(self, node: Node | None, above: Node | None) -> None:
        """One lock more for every node from `node` up to, but not with, `above`."""
        while node is not None and node is not above:
            if not node.locks:
                self.evictable_pages -= len(node.pages)
            node.locks += 1
            node = node.parent

    def _offer(self, node: Node) -> None:
        """Notes that `node` may have become an evictable leaf, or an empty tree."""
        if node.is_evictable:
            heapq.heappush(self._leaves, (node.last_use, node))
            if len(self._leaves) > 2 * self._nodes + _STALE_ENTRIES:
                self._leaves = [(one.last_use, one) for one in self.nodes() if one.is_evictable]
                heapq.heapify(self._leaves)
        elif node.parent is None and not node.locks and not node.children:
            if node in self._forgotten:
                self._forgotten.remove(node)
            else:
                del self._roots[node.cache_root]

    def _cut(self, leaf: Node, kept: int) -> None:
        """Leaves the first `kept` pages of a leaf, or nothing of it."""
        if kept:
            leaf.key, leaf.pages = leaf.key[: kept * self._page_bytes], leaf.pages[:kept]
            self._offer(leaf)
        elif (parent := leaf.parent) is not None:
            del parent.children[leaf.key[: self._page_bytes]]
            leaf.parent = None
            self._nodes -= 1
            self._offer(parent)


def _with_descendants(top: Node) -> Iterator[Node]:
    """A node and all below it, a parent before its children."""
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()
