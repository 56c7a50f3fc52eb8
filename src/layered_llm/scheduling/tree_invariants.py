"""Recomputes from scratch what must always be true of the prefix tree.

Must not know: how the tree came about, choices. It reads, and changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from layered_llm.scheduling.prefix_tree import TOKEN_BYTES, Node


def tree_violations(
    nodes: Iterable[Node], places: Iterable[Node], *, page_size_tokens: int, evictable_pages: int
) -> Iterator[str]:
    """One sentence for each invariant that does not hold. `places` has one entry for each lock that somebody holds."""
    nodes = list(nodes)
    page_bytes = page_size_tokens * TOKEN_BYTES
    locks = _expected_locks(places)
    for node in nodes:
        if node.locks != locks[node]:
            yield f"{_name(node)} has {node.locks} locks, {locks[node]} are held in it or below"
        if len(node.key) != len(node.pages) * page_bytes or (node.parent is not None) != bool(node.pages):
            yield f"{_name(node)} has {len(node.pages)} pages for {len(node.key)} bytes of tokens"
        if any(child.parent is not node or child.key[:page_bytes] != key for key, child in node.children.items()):
            yield f"{_name(node)} has a child that is not its own or is kept under another key"
        if node.parent is None and not node.locks and not node.children:
            yield f"{_name(node)} is an empty tree that nobody uses"
    if locks.keys() - set(nodes):
        yield "somebody holds a place that is not in the prefix tree"
    if len({node.last_use for node in nodes if node.last_use}) != sum(bool(node.last_use) for node in nodes):
        yield "two nodes of the prefix tree were used last at one time"
    unlocked = sum(len(node.pages) for node in nodes if not node.locks)
    if unlocked != evictable_pages:
        yield f"{evictable_pages} pages are counted as evictable, {unlocked} are"


def _expected_locks(places: Iterable[Node]) -> Counter[Node]:
    locks: Counter[Node] = Counter()
    for place in places:
        node: Node | None = place
        while node is not None:
            locks[node] += 1
            node = node.parent
    return locks


def _name(node: Node) -> str:
    return f"the node of pages {node.pages} in the tree of salt {node.salt!r}"
