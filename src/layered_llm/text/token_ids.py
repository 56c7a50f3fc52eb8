"""Which token ids an engine has: those that the tokenizer has tokens for and the model logits.

Must not know: requests, sampling.

The two need not agree. Many models have wider logits than their tokenizer, padded to a round number: what such an id would be
sampled as has no text, and its rows were never trained. A tokenizer may have ids that the logits do not reach.
"""

from collections.abc import Sequence

import attrs

from layered_llm.domain.columns import pack_i32
from layered_llm.text.tokenizer import Tokenizer


@attrs.frozen(eq=False)
class TokenIds:
    """The ids of one tokenizer that one model can take and sample."""

    _tokenizer: Tokenizer
    size: int
    """No id at or above it exists."""
    _has_gaps: bool
    """Whether ids below `size` are missing."""
    missing_ranges: bytes
    """Ids of the model that are missing, packed as `TokenSampling.missing_ranges`."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, model_size: int) -> "TokenIds":
        """Of a model with so many logits."""
        size = min(tokenizer.vocabulary_size, model_size)
        ranges = [gap for first, end in tokenizer.gaps if first < size for gap in (first, min(end, size))]
        has_gaps = bool(ranges)
        if size < model_size:
            ranges += [size, model_size]
        return cls(tokenizer, size, has_gaps, pack_i32(ranges))

    def has(self, token: int) -> bool:
        return token < self.size and self._tokenizer.has(token)

    def fault(self, token_ids: Sequence[int]) -> str | None:
        """What is wrong with the first of `token_ids` that does not exist, as words to put after "holds"; None if all do."""
        if self._are_all_there(token_ids):
            return None
        for token in token_ids:
            if not 0 <= token < self.size:
                return f"{token}, which is out of the vocabulary of {self.size} tokens"
            if not self._tokenizer.has(token):
                return f"{token}, which is no token of the tokenizer, though below {self.size}"
        return None

    def _are_all_there(self, token_ids: Sequence[int]) -> bool:
        """A prompt may have a hundred thousand. Where ids have no gaps the least and the largest speak for all of them."""
        if not token_ids:
            return True
        if min(token_ids) < 0 or max(token_ids) >= self.size:
            return False
        return not self._has_gaps or self._tokenizer.has_all(token_ids)
