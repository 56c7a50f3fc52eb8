"""Orders to end requests and questions what became of them, passed on to the API processes that may have them, and the answers
on the way back.

Must not know: what a request says, clocks (time comes in as an argument), which processes there are.

A process that is asked and hangs gets no answer made up for it: the asker learns by its own clock that it cannot know.
"""

from collections.abc import Iterable
from typing import assert_never

import attrs

from layered_llm.domain.messages.supervision import AbortByName, FindRequest, RequestFound, RequestsAborted

Order = AbortByName | FindRequest
Answer = RequestsAborted | RequestFound
Routed = tuple[tuple[str, Order | Answer], ...]
"""Messages with the names of those who are to get them."""


@attrs.define
class _Order:
    asker: str
    expires_s: float
    missing: set[str]
    answer: Answer
    """Of all that answered so far, under the asker's own number."""

    def add(self, said: Answer) -> None:
        """Counts add up; of what became of a request, that it is open is the last word."""
        match self.answer, said:
            case RequestsAborted(count=before), RequestsAborted(count=count):
                self.answer = attrs.evolve(self.answer, count=before + count)
            case RequestFound(fate=before), RequestFound(fate=fate) if fate is not None and (before is None or fate.is_open):
                self.answer = attrs.evolve(self.answer, fate=fate)
            case _:
                pass


@attrs.define
class AbortRouting:
    """The orders that somebody still has to answer."""

    _orders: dict[int, _Order] = attrs.field(factory=dict)
    _next_query: int = 1

    def __len__(self) -> int:
        return len(self._orders)

    def route(self, asker: str, order: Order, asked: Iterable[str], expires_s: float) -> Routed:
        """Passes an order on to `asked` under a number of its own; to nobody, and it is answered at once."""
        query, self._next_query = self._next_query, self._next_query + 1
        self._orders[query] = _Order(asker, expires_s, set(asked), _nothing(order))
        passed_on = attrs.evolve(order, query=query)
        return tuple((peer, passed_on) for peer in sorted(self._orders[query].missing)) or self._answered(query)

    def answer(self, peer: str, answer: Answer) -> Routed:
        """One process's word; the last one's answers the asker. A word that nobody asked for is dropped."""
        order = self._orders.get(answer.query)
        if order is None or peer not in order.missing:
            return ()
        order.add(answer)
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
        return ((order.asker, order.answer),)


def _nothing(order: Order) -> Answer:
    """What is known before anybody answered."""
    match order:
        case AbortByName(query=query):
            return RequestsAborted(query=query, count=0)
        case FindRequest(query=query):
            return RequestFound(query=query, fate=None)
        case _ as unreachable:
            assert_never(unreachable)
