"""What one row of logits is sampled with.

Must not know: slots, steps, tensors.
"""

import attrs

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

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature < GREEDY_TEMPERATURE
