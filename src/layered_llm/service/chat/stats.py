"""How fast one answer came.

Must not know: clocks, terminals.
"""

import attrs


@attrs.define
class AnswerTimes:
    """Times of the pieces of one answer, as they come."""

    _begun_s: float
    _first_s: float | None = None
    _last_s: float = 0.0
    _first_tokens: int = 0
    tokens: int = 0

    def add(self, tokens: int, now_s: float) -> None:
        """A piece of so many tokens came."""
        if self._first_s is None:
            self._first_s, self._first_tokens = now_s, tokens
        self.tokens += tokens
        self._last_s = now_s

    def stats(self, tokens: int | None = None) -> "AnswerStats":
        """`tokens` is the true count, where it is known."""
        tokens = self.tokens if tokens is None else tokens
        if self._first_s is None:
            return AnswerStats(tokens=tokens, ttft_s=None, tokens_per_s=None)
        later_tokens, later_s = tokens - self._first_tokens, self._last_s - self._first_s
        rate = later_tokens / later_s if later_tokens > 0 and later_s > 0 else None
        return AnswerStats(tokens=tokens, ttft_s=self._first_s - self._begun_s, tokens_per_s=rate)


@attrs.frozen(kw_only=True)
class AnswerStats:
    """The figures of one answer."""

    tokens: int
    ttft_s: float | None
    """Time to first token: from the question to the first piece; None when none came."""
    tokens_per_s: float | None
    """Behind the first piece, so without queueing and prefill; None when nothing came behind it."""

    def line(self) -> str:
        parts = [f"{self.tokens} token{'' if self.tokens == 1 else 's'}"]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.ttft_s is not None:
            parts.append(f"TTFT {self.ttft_s * 1000:.0f} ms")
        return " · ".join(parts)
