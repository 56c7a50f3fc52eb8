"""The slots of a device whose token values are on the host: each choice's tokens, and what they are sampled with.

Must not know: tensors, models, how a token is drawn.
"""

from collections.abc import Iterable

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.columns import rows
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, OpenSlot
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.domain.sampling import GREEDY_TEMPERATURE
from layered_llm.runtime.device.slots import SURPLUS_TOKENS, SlotLedger
from layered_llm.runtime.device.step_inputs import Int32s, Int64s, StepInputs, int32s


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


@attrs.frozen(kw_only=True, eq=False)
class SlotChoice:
    """What a slot was opened with."""

    choice: int
    """Index of the choice in its request."""
    sampling: TokenSampling
    prompt_ids: Int32s
    """A view."""
    seen: SeenTokens | None
    """Its tokens so far, counted; None where no penalty needs it."""
    missing: Int64s | None
    """Ids that it must never sample, since no token has them; None where there are none."""


class HostSlots:
    """A ledger with the values of its tokens."""

    def __init__(self, limits: RuntimeLimits) -> None:
        self._ledger = SlotLedger(limits)
        self._vocabulary_size = limits.vocabulary_size
        self._tokens: Int32s = np.zeros((limits.slots, limits.context_tokens + SURPLUS_TOKENS), np.int32)
        self.choices: dict[int, SlotChoice] = {}
        """Of all open slots."""
        self.missing: set[int] = set()
        """Open slots with ids that they must never sample."""
        self.adjusted: set[int] = set()
        """Open slots that do not simply take the likeliest token of the model's own logits, or report something of it."""
        self.reported: set[int] = set()
        """Open slots whose prompt is being reported: its log probabilities, until the row that samples the first token."""
        self._penalized: dict[int, SeenTokens] = {}

    def apply(self, step: ExecuteStep) -> StepInputs:
        """Applies the step's deltas in their order, checks its rows, and gives what they compute."""
        inputs = self._ledger.apply(step)
        if step.retired:
            for slot in int32s(step.retired).tolist():
                self._retire(slot)
        for opening in step.opened:
            self._open(int(opening.slot), opening)
        if not inputs.continues:
            slots = np.repeat(inputs.slots, inputs.counts)
            inputs.token_ids[:] = self._tokens[slots, inputs.positions]
        return inputs

    def append_sampled(self, inputs: StepInputs, token_ids: Int32s, counts: Int64s | None = None) -> None:
        """Adds what each sampling row of the last step sampled to its slot's output: `counts` tokens, or one."""
        slots, places = inputs.sampled_slots, inputs.sampled_ends
        if self.reported:
            self.reported.difference_update(slots.tolist())
        if counts is not None:
            firsts = np.cumsum(counts) - counts
            slots, places = np.repeat(slots, counts), np.arange(token_ids.size) + np.repeat(places - firsts, counts)
        self._tokens[slots, places] = token_ids
        self._ledger.sampled(inputs, counts)
        if inputs.is_decode and counts is None:
            inputs.token_ids[:] = token_ids
        if self._penalized:
            for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
                if (seen := self._penalized.get(slot)) is not None:
                    seen.add(token)

    def output_ids(self, slot: int) -> Int32s:
        """The slot's output so far; a view."""
        return self._tokens[slot, self.choices[slot].prompt_ids.size : self._ledger.known_tokens(slot)]

    def reports_prompts(self, inputs: StepInputs) -> bool:
        """Whether a row of the step computes a prompt that is being reported."""
        return bool(self.reported) and not self.reported.isdisjoint(inputs.slots.tolist())

    def _retire(self, slot: int) -> None:
        del self.choices[slot]
        self._penalized.pop(slot, None)
        for marked in (self.missing, self.adjusted, self.reported):
            marked.discard(slot)

    def _open(self, slot: int, opening: OpenSlot) -> None:
        sampling = opening.sampling
        prompt, output = int32s(opening.prompt_ids), int32s(opening.output_ids)
        for ids in (prompt, output, *map(int32s, (sampling.biased_ids, sampling.allowed_ids, *sampling.bad_words))):
            self._check_vocabulary(slot, ids)
        tokens = self._tokens[slot]
        tokens[: prompt.size] = prompt
        tokens[prompt.size : prompt.size + output.size] = output
        self.choices[slot] = choice = SlotChoice(
            choice=opening.choice,
            sampling=sampling,
            prompt_ids=tokens[: prompt.size],
            seen=seen_tokens(sampling, prompt, output),
            missing=self._expanded(slot, int32s(sampling.missing_ranges)) if sampling.missing_ranges else None,
        )
        self._mark(slot, choice, is_reported=sampling.prompt_logprobs is not None and not output.size)

    def _mark(self, slot: int, choice: SlotChoice, *, is_reported: bool) -> None:
        if choice.missing is not None:
            self.missing.add(slot)
        if choice.seen is not None:
            self._penalized[slot] = choice.seen
        if not takes_best(choice.sampling):
            self.adjusted.add(slot)
        if is_reported:
            self.reported.add(slot)

    def _expanded(self, slot: int, ranges: Int32s) -> Int64s:
        firsts, ends = ranges[::2], ranges[1::2]
        self._check_vocabulary(slot, ranges[:1])
        self._check_vocabulary(slot, ends[-1:] - 1)
        if ranges.size % 2 or (np.diff(ranges) <= 0).any():
            raise InvariantViolated(f"slot {slot} is opened with ranges of missing ids that do not rise")
        return np.concatenate([np.arange(first, end) for first, end in zip(firsts, ends, strict=True)])

    def _check_vocabulary(self, slot: int, token_ids: Int32s) -> None:
        if token_ids.size and not (token_ids.min() >= 0 and token_ids.max() < self._vocabulary_size):
            raise InvariantViolated(f"slot {slot} is opened with a token outside the vocabulary")
