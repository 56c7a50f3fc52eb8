"""What an API process measures of its requests: latencies, and how long prompts and outputs are.

Must not know: sockets, clocks (time comes in as an argument), how a figure is shown.

A request is observed as a whole when it ends by itself; one that was aborted or lost counts in none of the `request_…` figures.
"""

from typing import Final

import attrs

from layered_llm.domain.metrics import LATENCY_BUCKETS_S, TTFT_BUCKETS_S, Histogram, counter, histogram
from layered_llm.domain.stream import ChoiceDelta, RequestEnded

INTER_TOKEN_BUCKETS_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
TOKEN_BUCKETS: Final = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
CHOICE_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)


@attrs.define(eq=False)
class RequestTimes:
    """One request, as far as it was observed."""

    submitted_s: float
    choices: int
    max_tokens: int | None
    first_token_s: float | None = attrs.field(init=False, default=None)
    last_token_s: float = attrs.field(init=False, default=0.0)
    choice_tokens: dict[int, int] = attrs.field(init=False, factory=dict)
    """How many tokens of each choice came."""
    choice_last_s: dict[int, float] = attrs.field(init=False, factory=dict)
    """When the last ones of each choice came."""


@attrs.define(eq=False)
class RequestFigures:
    """Since the start of the process."""

    _tokens_emitted: int = counter("generation_tokens_emitted_total", "Output tokens that came to API processes.")
    _tokens_cached: int = counter(
        "prompt_tokens_cached_total", "Prompt tokens of ended requests that were found in the prefix index."
    )
    _ttft: Histogram = histogram(
        "time_to_first_token_seconds", "From the submit of a request to its first token.", TTFT_BUCKETS_S
    )
    _inter_token: Histogram = histogram("inter_token_latency_seconds", "Between two tokens of a choice.", INTER_TOKEN_BUCKETS_S)
    _mean_gap: Histogram = histogram(
        "request_time_per_output_token_seconds", "Between the tokens of an ended request, on average.", INTER_TOKEN_BUCKETS_S
    )
    _latency: Histogram = histogram(
        "e2e_request_latency_seconds", "From the submit of a request to its end.", LATENCY_BUCKETS_S
    )
    _decode: Histogram = histogram(
        "request_decode_time_seconds", "From the first token of an ended request to its last.", LATENCY_BUCKETS_S
    )
    _prompt_tokens: Histogram = histogram("request_prompt_tokens", "Prompt tokens of an ended request.", TOKEN_BUCKETS)
    _output_tokens: Histogram = histogram("request_generation_tokens", "Output tokens of an ended request.", TOKEN_BUCKETS)
    _longest_choice: Histogram = histogram(
        "request_max_generation_tokens", "Output tokens of the longest choice of an ended request.", TOKEN_BUCKETS
    )
    _max_tokens: Histogram = histogram(
        "request_params_max_tokens", "The max_tokens of an ended request that named it.", TOKEN_BUCKETS
    )
    _choices: Histogram = histogram("request_params_n", "Choices that an ended request asked for.", CHOICE_BUCKETS)

    def observe(self, times: RequestTimes, delta: ChoiceDelta, now_s: float) -> None:
        """A delta came."""
        if not delta.token_ids:
            return
        choice, tokens = delta.choice, len(delta.token_ids)
        self._tokens_emitted += tokens
        if times.first_token_s is None:
            times.first_token_s = now_s
            self._ttft.observe(now_s - times.submitted_s)
        times.last_token_s = now_s
        times.choice_tokens[choice] = times.choice_tokens.get(choice, 0) + tokens
        before_s, times.choice_last_s[choice] = times.choice_last_s.get(choice), now_s
        if before_s is not None:
            self._inter_token.observe((now_s - before_s) / tokens, tokens)

    def observe_end(self, times: RequestTimes, end: RequestEnded, now_s: float) -> None:
        """The request ended by itself."""
        self._tokens_cached += end.usage.cached_tokens
        self._latency.observe(now_s - times.submitted_s)
        self._prompt_tokens.observe(end.usage.prompt_tokens)
        self._output_tokens.observe(end.usage.completion_tokens)
        longest_tokens = max(times.choice_tokens.values(), default=0)
        self._longest_choice.observe(longest_tokens)
        self._choices.observe(times.choices)
        if times.max_tokens is not None:
            self._max_tokens.observe(times.max_tokens)
        if times.first_token_s is not None:
            decode_s = times.last_token_s - times.first_token_s
            self._decode.observe(decode_s)
            self._mean_gap.observe(decode_s / max(longest_tokens - 1, 1))
