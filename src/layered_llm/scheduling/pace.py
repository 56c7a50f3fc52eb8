"""How long a step takes, learned from steps that came back, and how much prefill a bound on the gap between tokens allows.

Must not know: clocks, choices, which step a time is of. The same measurements in the same order give the same limits.

A step is taken to cost a base, a price for each decode row and a price for each token of prefill. The three are fitted to the
recent steps by least squares with exponential forgetting, by coordinate descent that keeps them from going below zero (Franc,
Hlaváč, Navara, "Sequential coordinate-wise algorithm for the non-negative least squares problem", CAIP 2005). It goes on from
the last fit, so what recent steps do not tell apart stays as it was.

With two steps in flight the device never waits, so the time of a step is the time between two tokens. With one the host's time
between steps comes on top, which nobody measures here: it is small beside any gap worth a bound.

Invariant: a step with decode rows is left MIN_PREFILL_TOKENS at least, whatever the bound: no prompt starves. So no bound below
the time of a step with the decodes and these is kept.
"""

from typing import Final

MIN_PREFILL_TOKENS: Final = 16
"""As many as a page commonly has: fewer in a step would cost a prompt more in steps than it saves the streams."""

_FORGETTING: Final = 0.95
"""What a step counts for, as against the step after it: some 20 steps make the fit, so that it follows a growing context."""
_AIM: Final = 0.9
"""Part of the gap that is filled: times scatter, and the context that attention reads grows between fit and step."""
_MOST_SURPRISE: Final = 2.0
"""A step counts as this many times its prediction at most: a stall passes, and what lasts is learned in a few steps."""
_MOST_GROWTH: Final = 2
"""A limit is this many times the largest recent prefill at most: no fit tells much of steps far from those it was made of."""
_LEAST_EVIDENCE: Final = 1e-6
_SWEEPS: Final = 2


class Pace:
    """Keeps a step with decode rows shorter than `max_gap_us`, by the prefill that it may have."""

    def __init__(self, max_gap_us: int) -> None:
        self._aim_us = _AIM * max_gap_us
        self._prices_us = [0.0, 0.0, 0.0]
        """Of a token of prefill, of a decode row, of a step: the first one that explains a time gets it."""
        self._products = [[0.0] * 3 for _ in range(3)]
        self._targets = [0.0] * 3
        self._recent_prefill_tokens = 0.0
        """Of the largest step, less with each step since."""
        self._has_measured = False

    def measured(self, *, prefill_tokens: int, decode_rows: int, step_us: int) -> None:
        """Learns from a step that took `step_us` microseconds. A step without rows says nothing of others."""
        if not prefill_tokens and not decode_rows:
            return
        time_us = float(step_us)
        if self._has_measured:
            predicted_us = self.step_us(prefill_tokens=prefill_tokens, decode_rows=decode_rows)
            time_us = min(time_us, _MOST_SURPRISE * predicted_us) if predicted_us else time_us
        self._has_measured = True
        self._recent_prefill_tokens = max(_FORGETTING * self._recent_prefill_tokens, float(prefill_tokens))
        self._add((float(prefill_tokens), float(decode_rows), 1.0), time_us)
        for _ in range(_SWEEPS):
            self._sweep()

    def step_us(self, *, prefill_tokens: int, decode_rows: int) -> float:
        """The time that a step is expected to take."""
        prefill_us, decode_us, base_us = self._prices_us
        return base_us + decode_us * decode_rows + prefill_us * prefill_tokens

    def prefill_limit(self, *, decode_rows: int) -> int:
        """Most tokens of prefill beside `decode_rows` decodes, at least MIN_PREFILL_TOKENS."""
        most = max(MIN_PREFILL_TOKENS, int(_MOST_GROWTH * self._recent_prefill_tokens))
        left_us = self._aim_us - self.step_us(prefill_tokens=0, decode_rows=decode_rows)
        prefill_us = self._prices_us[0]
        if left_us >= most * prefill_us:
            return most
        return max(MIN_PREFILL_TOKENS, int(left_us / prefill_us) if prefill_us else 0)

    def _add(self, features: tuple[float, float, float], time_us: float) -> None:
        for row, left in enumerate(features):
            self._targets[row] = _FORGETTING * self._targets[row] + left * time_us
            products = self._products[row]
            for column, right in enumerate(features):
                products[column] = _FORGETTING * products[column] + left * right

    def _sweep(self) -> None:
        prices = self._prices_us
        for index, products in enumerate(self._products):
            if products[index] > _LEAST_EVIDENCE:
                others = sum(a * b for a, b in zip(products, prices, strict=True)) - products[index] * prices[index]
                prices[index] = max(0.0, (self._targets[index] - others) / products[index])
