"""What the opener of a request sees of it: deltas of its choices, then one end.

Must not know: links, HTTP.
"""

import attrs

from layered_llm.domain.finish import FinishReason


@attrs.frozen(kw_only=True)
class Usage:
    """True token counts of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    """Sampled tokens of all choices, eos included; a stop string cuts behind the token that completed it."""
    cached_tokens: int


@attrs.frozen(kw_only=True)
class TokenLogprob:
    """A token with the logarithm of the probability that the model itself gave it."""

    token_id: int
    token: bytes
    """What it stands for: a part of a UTF-8 character, where the vocabulary has tokens for those."""
    logprob: float
    """At most 0, and minus infinity for what the model excludes."""


@attrs.frozen(kw_only=True)
class SampledLogprob(TokenLogprob):
    """The same of a token that came, sampled or given, and of those that were the likeliest in its place."""

    top: tuple[TokenLogprob, ...]
    """The likeliest first; the sampled token may be among them."""
    rank: int | None = None
    """How many tokens of the vocabulary are at least as likely, itself included. Told of a prompt's tokens but the first."""


@attrs.frozen(kw_only=True)
class ChoiceDelta:
    """Everything that came for one choice since its last delta."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    """RUNNING while the choice goes on; anything else in exactly one delta of the choice, its last."""
    matched_stop: str | int | None
    logprobs: tuple[SampledLogprob, ...] = ()
    """One for each of `token_ids` where the request asked for them, else none."""
    prompt_logprobs: tuple[SampledLogprob, ...] = ()
    """One for each token of the prompt, in the first delta, where the request asked for them; the first one's is 0."""


@attrs.frozen(kw_only=True)
class RequestEnded:
    """The one terminal event of an accepted request."""

    usage: Usage
    error: str | None
    """None when each choice ended by itself; else one sentence on what failed in the engine."""


StreamEvent = ChoiceDelta | RequestEnded
