"""What one row of logits is sampled with, and whether that is more than taking the best.

Must not know: slots, steps, tensors, penalties' formulas.
"""

from collections.abc import Iterable

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.columns import rows
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.domain.sampling import GREEDY_TEMPERATURE


class SeenTokens:
    """Which tokens a choice has seen, and how often its output has each of them: what penalties depend on.

    Only tokens that came are kept, so that a choice costs what it has seen and not a vocabulary. A function of prompt
    and output alone, so that a choice that starts again counts the same.
    """

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self._ids = np.fromiter(self._places, np.int64, len(self._places))
        self._counts = np.zeros(len(self._places), np.int32)
        for token in output:
            self.add(token)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Each token once, in the order in which they came; a view."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.int32]:
        """How often each of `ids` is in the output: 0 for one that only the prompt has; a view."""
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        """`token` was sampled."""
        place = self._places.setdefault(token, len(self._places))
        if place == self._ids.size:
            self._ids = np.resize(self._ids, 2 * place + 16)
            self._counts = np.concatenate((self._counts, np.zeros(place + 16, np.int32)))
        self._ids[place] = token
        self._counts[place] += 1


def seen_tokens(sampling: TokenSampling, prompt: NDArray[np.int32], output: NDArray[np.int32]) -> SeenTokens | None:
    """What has to be counted for a choice, None without penalties. The prompt counts for the repetition penalty alone."""
    if sampling.repetition_penalty != 1.0:
        return SeenTokens(prompt.tolist(), output.tolist())
    if sampling.presence_penalty or sampling.frequency_penalty:
        return SeenTokens((), output.tolist())
    return None


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
    """Whether every token of such a choice is the likeliest by the model's own logits, and nothing is reported of it."""
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
