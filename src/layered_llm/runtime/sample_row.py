"""What one row of logits is sampled with, and whether that is more than taking the best.

Must not know: slots, steps, tensors.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.columns import rows
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.domain.sampling import GREEDY_TEMPERATURE
from layered_llm.runtime.seen_tokens import SeenTokens


@attrs.frozen(kw_only=True)
class SampleRow:
    """One choice at the moment it samples."""

    sampling: TokenSampling
    choice: int
    output_position: int
    """Tokens that the choice has sampled so far."""
    seen: SeenTokens | None = None
    """Its tokens so far, counted, where a penalty depends on them."""
    missing: NDArray[np.int64] | None = None
    """Ids that it must never sample, since no token has them."""
    recent: tuple[int, ...] = ()
    """The last tokens of its output, as many as `tokens_looked_at` says, or all where it has fewer."""

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature < GREEDY_TEMPERATURE


def tokens_looked_at(sampling: TokenSampling) -> int:
    """How many tokens of the output decide which bad words the next token could complete."""
    return max((rows("i", word) for word in sampling.bad_words), default=1) - 1


def takes_best(sampling: TokenSampling) -> bool:
    """Whether every token of such a choice is the likeliest by the model's own logits, and nothing is told about it."""
    changes = (
        sampling.biased_ids,
        sampling.allowed_ids,
        sampling.bad_words,
        sampling.min_tokens,
        sampling.repetition_penalty != 1.0,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )
    return sampling.temperature < GREEDY_TEMPERATURE and sampling.logprobs is None and not any(changes)
