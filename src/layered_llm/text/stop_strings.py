"""Stop strings found in text that comes piece by piece, none of which is shown too early.

Must not know: tokens, requests.

A. V. Aho and M. J. Corasick, "Efficient String Matching: An Aid to Bibliographic Search", CACM 18 (1975): one automaton for all
stop strings of a request, walked once per character, so that the time is linear in the text whatever the strings share.

Invariants: the match that ends first wins, of those that end together the longest, so that the result does not depend on how
the text was split. Held back is only the longest end of the text that may still become a stop string.
"""

from collections.abc import Sequence

import attrs


@attrs.frozen(kw_only=True)
class StopAutomaton:
    """The automaton; node 0 is the start. It never changes, so all choices of a request share it."""

    children: tuple[dict[str, int], ...]
    fallback: tuple[int, ...]
    """The node of the longest proper suffix that is also a node."""
    held_chars: tuple[int, ...]
    """How much of the text's end may still grow into a match when a node is reached."""
    match: tuple[str | None, ...]
    """The longest stop string that ends where a node is reached."""

    @classmethod
    def of(cls, stops: Sequence[str]) -> "StopAutomaton":
        """The automaton of non-empty strings. Linear in their characters."""
        children, match = _trie(stops)
        fallback = [0] * len(children)
        held_chars = [0] * len(children)
        for node, depth in _by_depth(children):
            match[node] = match[node] or match[fallback[node]]
            held_chars[node] = depth if children[node] else held_chars[fallback[node]]
            for char, child in children[node].items():
                fallback[child] = _suffix_child(children, fallback, node, char)
        return cls(children=tuple(children), fallback=tuple(fallback), held_chars=tuple(held_chars), match=tuple(match))


def _trie(stops: Sequence[str]) -> tuple[list[dict[str, int]], list[str | None]]:
    children: list[dict[str, int]] = [{}]
    match: list[str | None] = [None]
    for stop in stops:
        node = 0
        for char in stop:
            child = children[node].setdefault(char, len(children))
            if child == len(children):
                children.append({})
                match.append(None)
            node = child
        match[node] = stop
    return children, match


def _by_depth(children: list[dict[str, int]]) -> list[tuple[int, int]]:
    """Every node with its depth, shallower nodes first."""
    order = [(0, 0)]
    for node, depth in order:  # grows while it is walked
        order.extend((child, depth + 1) for child in children[node].values())
    return order


def _suffix_child(children: list[dict[str, int]], fallback: list[int], node: int, char: str) -> int:
    while node:
        node = fallback[node]
        if (child := children[node].get(char)) is not None:
            return child
    return 0


@attrs.define
class StopScanner:
    """The state of one choice."""

    _automaton: StopAutomaton
    _includes_stop: bool
    _node: int = attrs.field(init=False, default=0)
    _held: str = attrs.field(init=False, default="")
    _matched: str | None = attrs.field(init=False, default=None)

    @property
    def matched(self) -> str | None:
        """The stop string that was found; nothing is pushed after it."""
        return self._matched

    def push(self, text: str, *, is_armed: bool = True) -> str:
        """The text that is certain to be no part of a later match; on a match, the text before it, or with it.

        A match that ends in text pushed while not armed is passed over.
        """
        automaton, node = self._automaton, self._node
        children, fallback, match = automaton.children, automaton.fallback, automaton.match
        for place, char in enumerate(text):
            child = children[node].get(char)
            while child is None and node:
                node = fallback[node]
                child = children[node].get(char)
            node = child or 0
            if is_armed and (stop := match[node]) is not None:
                return self._stop(self._held + text[: place + 1], stop)
        self._node = node
        seen = self._held + text
        certain = len(seen) - automaton.held_chars[node]
        self._held = seen[certain:]
        return seen[:certain]

    def finish(self) -> str:
        """The text still held, when nothing follows."""
        held, self._held = self._held, ""
        return held

    def _stop(self, seen: str, stop: str) -> str:
        self._matched = stop
        self._held = ""
        return seen if self._includes_stop else seen[: len(seen) - len(stop)]
