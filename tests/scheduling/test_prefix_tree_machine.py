"""The prefix tree with its page pool against a dictionary of prefixes, which finds, keeps and evicts one page at a time."""

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.ids import PageId, StepId
from layered_llm.domain.placement import CacheRoot
from layered_llm.scheduling.invariants import tree_violations
from layered_llm.scheduling.pages import NO_STEP, PageStore, count_everywhere
from layered_llm.scheduling.prefix_tree import Node

PAGES = 24

Key = tuple[str | None, tuple[int, ...]]
"""A salt and all tokens up to the end of a page."""


@attrs.define
class Reference:
    """What each prefix's last page is, and when it was let go last."""

    page_size: int
    pages: dict[Key, PageId] = attrs.field(factory=dict)
    last_use: dict[Key, int] = attrs.field(factory=dict)

    def keys(self, salt: str | None, tokens: list[int]) -> list[Key]:
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [(salt, tuple(tokens[:end])) for end in ends]

    def find(self, salt: str | None, tokens: list[int]) -> list[PageId]:
        found = []
        for key in self.keys(salt, tokens[: len(tokens) - 1]):
            if key not in self.pages:
                break
            found.append(self.pages[key])
        return found

    def evict(self, count: int, held: set[Key]) -> set[PageId]:
        """The leaf that was let go longest ago, again and again."""
        evicted = set()
        for _ in range(count):
            parents = {(salt, tokens[: -self.page_size]) for salt, tokens in self.pages}
            leaves = self.pages.keys() - parents - held
            oldest = min(leaves, key=self.last_use.__getitem__)
            evicted.add(self.pages.pop(oldest))
        return evicted


@attrs.define
class Holder:
    salt: str | None
    tokens: list[int]
    place: Node
    pages: list[PageId]


def spread(symbols: list[int], page_size: int) -> list[int]:
    """Pages that differ in their last token alone."""
    return [token for symbol in symbols for token in [*[7] * (page_size - 1), symbol]]


SYMBOLS = st.lists(st.integers(0, 2), max_size=6)


class PrefixTreeMachine(RuleBasedStateMachine):
    """A holder stands for a running choice: it finds a prefix, adds pages to it and lets it go."""

    @initialize(page_size=st.sampled_from([1, 4, 16]))
    def start(self, page_size: int) -> None:
        self.store = PageStore(pages=PAGES, page_size_tokens=page_size, keeps_prefixes=True)
        self.reference = Reference(page_size)
        self.holders: list[Holder] = []
        self.time = self.evicted = 0

    @rule(salt=st.sampled_from([None, "x"]), symbols=SYMBOLS, rest=st.integers(0, 15))
    def find(self, salt: str | None, symbols: list[int], rest: int) -> None:
        tokens = [*spread(symbols, self.reference.page_size), *[8] * (rest % self.reference.page_size)]
        expected = self.reference.find(salt, tokens)
        assert len(expected) * self.reference.page_size == self.store.find_tokens(CacheRoot(cache_salt=salt), pack_i32(tokens))
        prefix = self.store.find(CacheRoot(cache_salt=salt), pack_i32(tokens))
        assert expected == prefix.pages
        known = tokens[: len(prefix.pages) * self.reference.page_size]
        self.holders.append(Holder(salt, known, prefix.place, prefix.pages))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), symbols=SYMBOLS.filter(bool))
    def keep(self, data: st.DataObject, symbols: list[int]) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        if len(symbols) > self.store.available:
            return
        own = self.take(len(symbols))
        added = spread(symbols, self.reference.page_size)
        keys = self.reference.keys(holder.salt, holder.tokens + added)[-len(symbols) :]
        for key, page in zip(keys, own, strict=True):
            self.reference.pages.setdefault(key, page)

        prefix = self.store.keep(holder.place, pack_i32(added), list(own))

        assert [self.reference.pages[key] for key in keys] == prefix.pages
        self.store.give_back([page for page in own if page not in prefix.pages], NO_STEP)
        holder.tokens, holder.place, holder.pages = holder.tokens + added, prefix.place, holder.pages + prefix.pages

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.time += 1
        for key in self.reference.keys(holder.salt, holder.tokens):
            self.reference.last_use[key] = self.time
        self.store.unlock(holder.place, len(holder.pages), NO_STEP)

    @rule(data=st.data())
    def take_and_give_back(self, data: st.DataObject) -> None:
        self.store.give_back(self.take(data.draw(st.integers(0, self.store.available))), NO_STEP)

    @rule()
    def flush(self) -> None:
        unheld = len(self.reference.pages) - len(self.held())
        self.reference.evict(unheld, self.held())
        assert unheld == self.store.flush()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "store"):
            return
        places = [holder.place for holder in self.holders]
        nodes = list(self.store.nodes())
        size = self.reference.page_size
        assert [] == list(tree_violations(nodes, places, page_size_tokens=size, evictable_pages=self.store.cached))
        kept = [page for node in nodes for page in node.pages]
        assert sorted(self.reference.pages.values()) == sorted(kept)
        assert dict.fromkeys(range(PAGES), 1) == count_everywhere(self.store.census(), kept)
        assert len(self.reference.pages) - len(self.held()) == self.store.cached
        assert self.evicted == self.store.evicted
        for holder in self.holders:
            keys = self.reference.keys(holder.salt, holder.tokens)
            assert [self.reference.pages[key] for key in keys] == holder.pages

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for holder in self.holders:
                self.store.unlock(holder.place, len(holder.pages), StepId(0))
            self.store.flush()
            assert [] == list(self.store.nodes())
            assert PAGES == self.store.free

    def held(self) -> set[Key]:
        return {key for holder in self.holders for key in self.reference.keys(holder.salt, holder.tokens)}

    def take(self, count: int) -> list[PageId]:
        """Evicts what is missing, and not a page more, in the reference's order."""
        shortfall = max(0, count - self.store.free)
        expected = self.reference.evict(shortfall, self.held())
        self.evicted += shortfall
        taken = self.store.take(count)
        assert expected <= set(taken)
        return taken


TestPrefixTreeMachine = PrefixTreeMachine.TestCase
TestPrefixTreeMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True)
