"""How the token budget of one step is divided, and how much prefill a bound on the gap between tokens leaves of it.

Must not know: choices, pages, slots, clocks, which step a time is of. The same measurements in the same order give the same
limits.

Decodes come first, so that the gap between two tokens of a running stream is bounded, and prompts are cut into chunks that fill
the rest: chunked prefill with stall-free batching, Sarathi-Serve (Agrawal et al., arXiv:2403.02310). Where a gap is to be kept,
how long a step takes is learned from steps that came back.

A step is taken to cost a base, a price for each decode row, a price for each token of prefill and one for each token that these
attend to: the last chunk of a prompt of 1,600 tokens takes twice the time of the first. The four are fitted to the recent steps
by least squares with exponential forgetting. A slight pull to the last fit (ridge regression) keeps what recent steps do not
tell apart as it was, and a price that would go below zero is zero. Nearly all steps only decode and ask for no limit: they are
summed, and the fit is made when a limit is asked for.

With two steps in flight the device never waits, so the time of a step is the time between two tokens. With one the host's time
between steps comes on top, which nobody measures here: it is small beside any gap worth a bound.

Invariant: a step with decode rows is left MIN_PREFILL_TOKENS at least, whatever the bound: no prompt starves. So no bound below
the time of a step with the decodes and these is kept.
"""

from collections.abc import Callable, Sequence
from typing import Final

MIN_PREFILL_TOKENS: Final = 16
"""As many as a page commonly has: fewer in a step would cost a prompt more in steps than it saves the streams."""

_FORGETTING: Final = 0.95
"""What a step counts for, as against the step after it: some 20 steps make the fit, so that it follows a growing context."""
_AIM: Final = 0.9
"""Part of the gap that is filled: times scatter."""
_MOST_SURPRISE: Final = 2.0
"""A step counts as this many times its prediction at most: a stall passes, and what lasts is learned in a few steps."""
_MOST_GROWTH: Final = 2
"""A limit is this many times the largest recent prefill at most: no fit says much of steps far from those it was made of."""
_LEAST_EVIDENCE: Final = 1e-6
_MOST_WEIGHT: Final = 1e12
_PULL: Final = 1e-4
"""What the last fit counts for, as against the recent steps."""
_NARROWINGS: Final = 2
"""The price of a token depends on how far the chunks reach, and that on the limit: found in so many rounds, within 2 %."""


def decode_limit(max_step_tokens: int, *, is_prefilling: bool) -> int:
    """Most decode rows of a step.

    Where a prompt is under way, a quarter of the budget is kept from the decodes, so that a crowd of them slows new requests
    down but cannot shut them out. A budget of one token goes to decodes: they end by themselves.
    """
    kept = min(-(-max_step_tokens // 4), max_step_tokens - 1) if is_prefilling else 0
    return max_step_tokens - kept


def share_chunks(remaining_tokens: Sequence[int], budget_tokens: int) -> list[int]:
    """Tokens for each prompt under way, given what is left of each, the oldest first.

    Half of the budget is the oldest prompt's; the rest goes to the prompt that is shortest to its end, then to the next one.
    So a short prompt passes a long one, the mean time to a first token is near the least that is possible (shortest remaining
    processing time first), and no prompt starves: each becomes the oldest one and then moves with every step. Equal shares
    would be worse, since prompts of one length would all finish last.
    """
    shares = [0] * len(remaining_tokens)
    if not shares:
        return shares
    shares[0] = min(remaining_tokens[0], -(-budget_tokens // 2))
    left = budget_tokens - shares[0]
    for index in sorted(range(len(shares)), key=remaining_tokens.__getitem__):
        more = min(remaining_tokens[index] - shares[index], left)
        shares[index] += more
        left -= more
    return shares


def attended_tokens(start: int, count: int) -> int:
    """Tokens that a chunk attends to, summed over its `count` tokens, the first of which is at position `start`."""
    return count * start + count * (count + 1) // 2


class Pace:
    """Keeps a step with decode rows shorter than `max_gap_us`, by the prefill that it may have."""

    def __init__(self, max_gap_us: int) -> None:
        self._aim_us = _AIM * max_gap_us
        self._prices_us = [0.0, 0.0, 0.0, 0.0]
        """Of a token of prefill, an attended token, a decode row, a step."""
        self._weight = 1.0
        """Of the next step. It grows from step to step, which is forgetting the others without touching them."""
        self._products = [[0.0] * 4 for _ in range(4)]
        self._targets = [0.0] * 4
        self._is_fitted = True
        self._recent_prefill_tokens = 0.0
        """Of the largest step, less with each step since."""

    def measured(self, *, prefill_tokens: int, attended_tokens: int, decode_rows: int, step_us: int) -> None:
        """Learns from a step that took `step_us` microseconds. A step without rows says nothing of others.

        `attended_tokens` are those of its chunks of prompts together.
        """
        if not prefill_tokens and not decode_rows:
            return
        time_us = float(step_us)
        if time_us > _MOST_SURPRISE * self._priced_us(prefill_tokens, attended_tokens, decode_rows):
            # Only a time above that of the last fit is worth a new one.
            expected_us = self.step_us(prefill_tokens=prefill_tokens, attended_tokens=attended_tokens, decode_rows=decode_rows)
            time_us = min(time_us, _MOST_SURPRISE * expected_us) if expected_us else time_us
        self._recent_prefill_tokens = max(_FORGETTING * self._recent_prefill_tokens, float(prefill_tokens))
        self._add(((0, prefill_tokens), (1, attended_tokens), (2, decode_rows), (3, 1)), time_us)

    def step_us(self, *, prefill_tokens: int, attended_tokens: int, decode_rows: int) -> float:
        """The time that a step is expected to take."""
        if not self._is_fitted:
            self._fit()
        return self._priced_us(prefill_tokens, attended_tokens, decode_rows)

    def prefill_limit(self, *, decode_rows: int, attended: Callable[[int], int]) -> int:
        """Most tokens of prefill beside `decode_rows` decodes, at least MIN_PREFILL_TOKENS.

        `attended` gives the attended tokens of a step from its tokens of prefill.
        """
        limit = max(MIN_PREFILL_TOKENS, int(_MOST_GROWTH * self._recent_prefill_tokens))
        left_us = self._aim_us - self.step_us(prefill_tokens=0, attended_tokens=0, decode_rows=decode_rows)
        prefill_us, attended_us, *_ = self._prices_us
        for _ in range(_NARROWINGS):
            token_us = prefill_us + attended_us * attended(limit) / limit
            if left_us < limit * token_us:
                limit = max(MIN_PREFILL_TOKENS, int(left_us / token_us) if token_us else 0)
        return limit

    def _priced_us(self, prefill_tokens: int, attended_tokens: int, decode_rows: int) -> float:
        """By the last fit."""
        prefill_us, attended_us, decode_us, base_us = self._prices_us
        return base_us + decode_us * decode_rows + prefill_us * prefill_tokens + attended_us * attended_tokens

    def _add(self, features: tuple[tuple[int, int], ...], time_us: float) -> None:
        weight = self._weight
        present = [(index, float(value)) for index, value in features if value]
        for row, left in present:
            weighted = weight * left
            self._targets[row] += weighted * time_us
            products = self._products[row]
            for column, right in present:
                products[column] += weighted * right
        self._weight = weight / _FORGETTING
        self._is_fitted = False
        if self._weight > _MOST_WEIGHT:
            self._rescale()

    def _rescale(self) -> None:
        """Weights are relative: this keeps them from growing out of range."""
        self._products = [[product / self._weight for product in products] for products in self._products]
        self._targets = [target / self._weight for target in self._targets]
        self._weight = 1.0

    def _fit(self) -> None:
        self._is_fitted = True
        fitted = [index for index in range(4) if self._products[index][index] > _LEAST_EVIDENCE * self._weight]
        while fitted:
            found = self._least_squares(fitted)
            lowest = min(found, key=found.__getitem__)
            for index, price_us in found.items():
                self._prices_us[index] = max(0.0, price_us)
            if found[lowest] >= 0:
                return
            fitted.remove(lowest)

    def _least_squares(self, fitted: list[int]) -> dict[int, float]:
        """The prices of `fitted` that explain the times best, the other prices given: the normal equations."""
        prices, rest = self._prices_us, [index for index in range(4) if index not in fitted]
        equations: list[list[float]] = []
        for row in fitted:
            products, pull = self._products[row], _PULL * self._products[row][row]
            known = sum(products[index] * prices[index] for index in rest)
            left = [products[column] + (pull if column == row else 0.0) for column in fitted]
            equations.append([*left, self._targets[row] - known + pull * prices[row]])
        return dict(zip(fitted, _solved(equations), strict=True))


def _solved(equations: list[list[float]]) -> list[float]:
    """Gauss-Jordan elimination of a positive definite system, which needs no pivots; each row ends with its right side."""
    for place, pivot in enumerate(equations):
        pivot[:] = [value / pivot[place] for value in pivot]
        for other, row in enumerate(equations):
            if other != place:
                factor = row[place]
                row[:] = [value - factor * mine for value, mine in zip(row, pivot, strict=True)]
    return [row[-1] for row in equations]
