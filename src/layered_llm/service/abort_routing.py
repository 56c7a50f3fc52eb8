"""Orders to end requests, passed on to the API processes that may have them open, and their answers on the way back.

Must not know: what a request says, clocks (time comes in as an argument), which processes there are.

A process that is asked and hangs gets no answer made up for it: the asker learns by its own clock that it cannot know.
"""

from collections.abc import Iterable

import attrs

from layered_llm.domain.messages.supervision import AbortByName, RequestsAborted

Routed = tuple[tuple[str, AbortByName | RequestsAborted], ...]
"""Messages with the names of those who are to get them."""


@attrs.define
class _Order:
    asker: str
    askers_query: int
    expires_s: float
    missing: set[str]
    count: int = 0


@attrs.define
class AbortRouting:
    """The orders that somebody still has to answer."""

    _orders: dict[int, _Order] = attrs.field(factory=dict)
    _next_query: int = 1

    def __len__(self) -> int:
        return len(self._orders)

    def route(self, asker: str, order: AbortByName, asked: Iterable[str], expires_s: float) -> Routed:
        """Passes an order on to `asked` under a number of its own; to nobody, and it is answered at once."""
        query, self._next_query = self._next_query, self._next_query + 1
        self._orders[query] = _Order(asker, order.query, expires_s, set(asked))
        passed_on = attrs.evolve(order, query=query)
        return tuple((peer, passed_on) for peer in sorted(self._orders[query].missing)) or self._answered(query)

    def answer(self, peer: str, answer: RequestsAborted) -> Routed:
        """One process's word; the last one's answers the asker. A word that nobody asked for is dropped."""
        order = self._orders.get(answer.query)
        if order is None or peer not in order.missing:
            return ()
        order.count += answer.count
        return self._no_longer_missing(answer.query, peer)

    def forget(self, peer: str) -> Routed:
        """The process is gone, and all that it had open with it."""
        self._orders = {query: order for query, order in self._orders.items() if order.asker != peer}
        return tuple(routed for query in list(self._orders) for routed in self._no_longer_missing(query, peer))

    def expire(self, now_s: float) -> None:
        """Drops the orders that came to nothing."""
        self._orders = {query: order for query, order in self._orders.items() if order.expires_s > now_s}

    def _no_longer_missing(self, query: int, peer: str) -> Routed:
        missing = self._orders[query].missing
        if peer not in missing:
            return ()
        missing.discard(peer)
        return () if missing else self._answered(query)

    def _answered(self, query: int) -> Routed:
        order = self._orders.pop(query)
        return ((order.asker, RequestsAborted(query=order.askers_query, count=order.count)),)
