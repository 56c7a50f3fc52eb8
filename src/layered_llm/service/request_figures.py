"""What an API process measures of its requests: latencies, and how long prompts and outputs are.

Must not know: sockets, clocks (time comes in as an argument), how a figure is shown.

A request is observed as a whole when it ends by itself; one that was aborted or lost counts in none of the `request_…` figures.
"""

from typing import Final

import attrs

from layered_llm.domain.stream import ChoiceDelta, RequestEnded
from layered_llm.service.histogram import INTER_TOKEN_BUCKETS_S, LATENCY_BUCKETS_S, TTFT_BUCKETS_S, Histogram

TOKEN_BUCKETS: Final = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
CHOICE_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)


@attrs.define(eq=False)
class RequestTimes:
    """One request, as far as it was observed."""

    submitted_s: float
    choices: int
    max_tokens: int | None
    first_token_s: float | None = None
    _last_token_s: dict[int, float] = attrs.field(init=False, factory=dict)
    _tokens: dict[int, int] = attrs.field(init=False, factory=dict)

    @property
    def last_token_s(self) -> float | None:
        return max(self._last_token_s.values(), default=None)

    @property
    def tokens(self) -> int:
        """Of all choices."""
        return sum(self._tokens.values())

    @property
    def longest_choice_tokens(self) -> int:
        return max(self._tokens.values(), default=0)

    def add(self, choice: int, tokens: int, now_s: float) -> float | None:
        """Time since the choice's last tokens, None at its first."""
        before_s, self._last_token_s[choice] = self._last_token_s.get(choice), now_s
        self._tokens[choice] = self._tokens.get(choice, 0) + tokens
        return None if before_s is None else now_s - before_s


@attrs.define(eq=False)
class RequestFigures:
    """Histograms and sums since the start of the process."""

    _tokens_emitted: int = attrs.field(init=False, default=0)
    _tokens_cached: int = attrs.field(init=False, default=0)
    _ttft: Histogram = attrs.field(init=False, factory=lambda: Histogram(TTFT_BUCKETS_S))
    _inter_token: Histogram = attrs.field(init=False, factory=lambda: Histogram(INTER_TOKEN_BUCKETS_S))
    _mean_gap: Histogram = attrs.field(init=False, factory=lambda: Histogram(INTER_TOKEN_BUCKETS_S))
    _latency: Histogram = attrs.field(init=False, factory=lambda: Histogram(LATENCY_BUCKETS_S))
    _decode: Histogram = attrs.field(init=False, factory=lambda: Histogram(LATENCY_BUCKETS_S))
    _prompt_tokens: Histogram = attrs.field(init=False, factory=lambda: Histogram(TOKEN_BUCKETS))
    _output_tokens: Histogram = attrs.field(init=False, factory=lambda: Histogram(TOKEN_BUCKETS))
    _longest_choice: Histogram = attrs.field(init=False, factory=lambda: Histogram(TOKEN_BUCKETS))
    _max_tokens: Histogram = attrs.field(init=False, factory=lambda: Histogram(TOKEN_BUCKETS))
    _choices: Histogram = attrs.field(init=False, factory=lambda: Histogram(CHOICE_BUCKETS))

    def observe(self, times: RequestTimes, delta: ChoiceDelta, now_s: float) -> None:
        """A delta came."""
        if not delta.token_ids:
            return
        tokens = len(delta.token_ids)
        self._tokens_emitted += tokens
        if times.first_token_s is None:
            times.first_token_s = now_s
            self._ttft.observe(now_s - times.submitted_s)
        gap_s = times.add(delta.choice, tokens, now_s)
        if gap_s is not None:
            self._inter_token.observe(gap_s / tokens, tokens)

    def observe_end(self, times: RequestTimes, end: RequestEnded, now_s: float) -> None:
        """The request ended by itself."""
        self._tokens_cached += end.usage.cached_tokens
        self._latency.observe(now_s - times.submitted_s)
        self._prompt_tokens.observe(end.usage.prompt_tokens)
        self._output_tokens.observe(end.usage.completion_tokens)
        self._longest_choice.observe(times.longest_choice_tokens)
        self._choices.observe(times.choices)
        if times.max_tokens is not None:
            self._max_tokens.observe(times.max_tokens)
        if times.first_token_s is not None and times.last_token_s is not None:
            decode_s = times.last_token_s - times.first_token_s
            self._decode.observe(decode_s)
            self._mean_gap.observe(decode_s / max(times.longest_choice_tokens - 1, 1))

    def samples(self) -> tuple[tuple[str, float], ...]:
        """Prometheus samples."""
        return (
            ("layered_llm_generation_tokens_emitted_total", float(self._tokens_emitted)),
            ("layered_llm_prompt_tokens_cached_total", float(self._tokens_cached)),
            *self._ttft.samples("layered_llm_time_to_first_token_seconds"),
            *self._inter_token.samples("layered_llm_inter_token_latency_seconds"),
            *self._mean_gap.samples("layered_llm_request_time_per_output_token_seconds"),
            *self._latency.samples("layered_llm_e2e_request_latency_seconds"),
            *self._decode.samples("layered_llm_request_decode_time_seconds"),
            *self._prompt_tokens.samples("layered_llm_request_prompt_tokens"),
            *self._output_tokens.samples("layered_llm_request_generation_tokens"),
            *self._longest_choice.samples("layered_llm_request_max_generation_tokens"),
            *self._max_tokens.samples("layered_llm_request_params_max_tokens"),
            *self._choices.samples("layered_llm_request_params_n"),
        )
