"""Which of several waiting choices starts next: one small pure strategy for each order.

Must not know: queues, tenants, pages.
"""

from collections.abc import Callable, Iterable
from typing import Final, assert_never

import attrs

from layered_llm.scheduling.policy import AdmissionOrder
from layered_llm.scheduling.sequences import Sequence

_PREFIX_WINDOW: Final = 32
"""Looking into the cache for each choice of a long queue would cost more than a prefix that comes a little later."""


@attrs.frozen
class Order:
    """The lowest rank starts first."""

    window: int
    """How many choices that came first in a lane (one worker, one priority) are looked at; behind them nothing ranks lower."""
    rank: Callable[[Sequence], tuple[int, int]]

    def choose(self, candidates: Iterable[Sequence]) -> Sequence:
        return min(candidates, key=self.rank)


def order_for(order: AdmissionOrder, *, cached_tokens: Callable[[Sequence], int]) -> Order:
    """`cached_tokens` says how much of a waiting choice is in the cache now."""
    match order:
        case AdmissionOrder.FIRST_COME:
            return Order(1, lambda sequence: (0, sequence.arrival))
        case AdmissionOrder.PRIORITY:
            return Order(1, lambda sequence: (sequence.admit.priority, sequence.arrival))
        case AdmissionOrder.LONGEST_PREFIX:
            return Order(_PREFIX_WINDOW, lambda sequence: (-cached_tokens(sequence), sequence.arrival))
        case _:
            assert_never(order)


def arrival(sequence: Sequence) -> int:
    """First come, first served."""
    return sequence.arrival
