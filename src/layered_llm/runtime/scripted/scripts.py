"""The scripts of the scripted device: the next token as a function of the history.

Must not know: pages, slots, steps, devices.

A script honours `min_tokens` as a sampler does: while fewer tokens than that are sampled, no id of `end_ids` is chosen. Nor is
ever one that no token has. What it chooses instead is said at each script.
"""

from itertools import chain, count, islice
from typing import Final, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.columns import pack_f32, pack_i32
from layered_llm.domain.messages.logprobs import NO_ENTRIES, LogprobColumns, LogprobEntries
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.domain.sampling import GREEDY_TEMPERATURE

_WORD: Final = (1 << 64) - 1
NOT_FINITE: Final = -1
"""In place of a token: the logits are not finite there, and the row fails."""
_POLYNOMIAL_BASE: Final = 0x9E3779B97F4A7C15


@attrs.frozen(kw_only=True, eq=False)
class History:
    """All tokens of a choice at the moment it samples."""

    token_ids: NDArray[np.int32]
    """Prompt, then output."""
    prompt_tokens: int
    choice: int
    sampling: TokenSampling
    missing_ids: NDArray[np.int64] | None = None
    """Ids that no token has, so that they are never sampled; rising."""

    @property
    def output_tokens(self) -> int:
        return self.token_ids.size - self.prompt_tokens

    def is_masked(self, token: int) -> bool:
        """Whether `token` must not be sampled now."""
        is_early_end = self.output_tokens < self.sampling.min_tokens and token in self.sampling.end_ids
        return is_early_end or is_missing(token, self.missing_ids)


def is_missing(token: int, missing_ids: NDArray[np.int64] | None) -> bool:
    """Whether `token` is one of `missing_ids`, which rise."""
    if missing_ids is None:
        return False
    place = int(np.searchsorted(missing_ids, token))
    return place < missing_ids.size and int(missing_ids[place]) == token


def scripted_logprobs(history: History, token: int, vocabulary_size: int) -> LogprobEntries:
    """Made-up log probabilities of `token`, which is the likeliest; those after it are the next ids, each less likely by e.

    They depend on the output position, so that one that is lost or reported twice shows. All are exact in fp32.
    """
    if history.sampling.logprobs is None or token == NOT_FINITE:
        return NO_ENTRIES
    top, missing_ids = history.sampling.logprobs, history.missing_ids
    return _made_up(token, history.output_tokens, top, vocabulary_size, missing_ids)


def scripted_prompt_logprobs(
    prompt: NDArray[np.int32],
    start: int,
    count: int,
    top: int,
    vocabulary_size: int,
    *,
    missing_ids: NDArray[np.int64] | None = None,
) -> LogprobColumns | None:
    """Made-up log probabilities of the prompt tokens that a row of `count` tokens from `start` on is the first to report."""
    places = range(start + 1, min(start + count + 1, prompt.size))
    reported = [
        attrs.evolve(_made_up(int(prompt[place]), place, top, vocabulary_size, missing_ids), rank=1 + place % 3)
        for place in places
    ]
    if start == 0:
        reported.insert(0, LogprobEntries(token_ids=pack_i32([int(prompt[0])]), logprobs=pack_f32([0.0])))
    return LogprobColumns.of(reported)


def _made_up(token: int, place: int, top: int, vocabulary_size: int, missing_ids: NDArray[np.int64] | None) -> LogprobEntries:
    following = ((token + step) % vocabulary_size for step in range(vocabulary_size))
    likeliest = list(islice((other for other in following if not is_missing(other, missing_ids)), top))
    first = -(1 + place % 8) / 8
    return LogprobEntries(
        token_ids=pack_i32([token, *likeliest]),
        logprobs=pack_f32([first, *(first - rank for rank in range(len(likeliest)))]),
    )


class Script(Protocol):
    """Chooses tokens."""

    def next_token(self, history: History) -> int:
        """The token after `history`, or NOT_FINITE; the same for the same history."""


@attrs.frozen(kw_only=True)
class EchoScript:
    """Output position k is prompt token k modulo the prompt's length, so that the prompt says what comes out.

    A masked token is skipped in favour of the next one of the prompt, in the round, that is not masked; if all are, the
    smallest id that is not masked is chosen.
    """

    def next_token(self, history: History) -> int:
        first, length = history.output_tokens, history.prompt_tokens
        prompt = (int(history.token_ids[k % length]) for k in range(first, first + length))
        return next(token for token in chain(prompt, count()) if not history.is_masked(token))


@attrs.frozen(kw_only=True)
class HashScript:
    """A hash of the whole history, mapped to `first_id … first_id + id_count - 1`.

    One lost, repeated, swapped or foreign token changes everything after it. The choice's index and, unless greedy, the seed
    are mixed in. A masked token gives way to the next id of the range, in the round, that is not masked; if all are, the
    hashed one stays.
    """

    first_id: int
    id_count: int

    def next_token(self, history: History) -> int:
        seed = history.sampling.seed if history.sampling.temperature >= GREEDY_TEMPERATURE else 0
        mixed = _mix(_polynomial(history.token_ids) ^ _mix(seed) ^ _mix(history.choice + 1))
        around = (self.first_id + (mixed + step) % self.id_count for step in range(self.id_count))
        return next((token for token in around if not history.is_masked(token)), self.first_id + mixed % self.id_count)


@attrs.frozen(kw_only=True)
class FailingScript:
    """Another script, but logits that are not finite at one output position of each prompt that holds a certain token."""

    script: Script
    token: int
    position: int = 0

    def next_token(self, history: History) -> int:
        fails = history.output_tokens == self.position and self.token in history.token_ids[: history.prompt_tokens]
        return NOT_FINITE if fails else self.script.next_token(history)


def _polynomial(token_ids: NDArray[np.int32]) -> int:
    """The polynomial with coefficients `token + 1` at a fixed odd base, modulo 2**64."""
    powers = np.full(token_ids.size, _POLYNOMIAL_BASE, np.uint64)
    powers[:1] = 1
    return int(np.dot(token_ids.astype(np.uint64) + np.uint64(1), np.multiply.accumulate(powers)))


def _mix(value: int) -> int:
    """SplitMix64's output function (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)
