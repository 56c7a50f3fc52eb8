"""The slots of a device whose token values are on the host: each choice's tokens, and what they are sampled with.

Must not know: tensors, models, how a token is drawn.
"""

from collections.abc import Iterable

import numpy as np

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, OpenSlot
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.sample_row import takes_best
from layered_llm.runtime.seen_tokens import SeenTokens, seen_tokens
from layered_llm.runtime.slots import SURPLUS_TOKENS, SlotLedger
from layered_llm.runtime.step_inputs import Int32s, Int64s, StepInputs


class HostSlots:
    """A ledger with the values of its tokens."""

    def __init__(self, limits: RuntimeLimits) -> None:
        self._ledger = SlotLedger(limits)
        self._vocabulary_size = limits.vocabulary_size
        self._tokens: Int32s = np.zeros((limits.slots, limits.context_tokens + SURPLUS_TOKENS), np.int32)
        self._choices: dict[int, tuple[int, TokenSampling]] = {}
        self._seen: dict[int, SeenTokens] = {}
        self._missing: dict[int, Int64s] = {}
        self._adjusted: set[int] = set()
        """Slots whose choice does not simply take the likeliest token."""
        self._reported: set[int] = set()
        """Slots whose prompt is being reported."""

    @property
    def open_count(self) -> int:
        return self._ledger.open_count

    def apply(self, step: ExecuteStep) -> StepInputs:
        """Applies the step's deltas in their order, checks its rows, and gives what they compute."""
        inputs = self._ledger.apply(step)
        if step.retired:
            for slot in _ids(step.retired).tolist():
                self._retire(slot)
        for opening in step.opened:
            self._open(opening)
        if not inputs.continues:
            slots = np.repeat(inputs.slots, inputs.counts)
            inputs.token_ids[:] = self._tokens[slots, inputs.positions]
        return inputs

    def append_sampled(self, inputs: StepInputs, token_ids: Int32s) -> None:
        """Adds the token that each sampling row of the last step sampled to its slot's output."""
        slots = inputs.sampled_slots
        self._tokens[slots, inputs.sampled_ends] = token_ids
        self._ledger.sampled(inputs)
        if inputs.is_decode:
            inputs.token_ids[:] = token_ids
        if self._reported:
            self._reported.difference_update(slots.tolist())
        if self._seen:
            for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
                if (seen := self._seen.get(slot)) is not None:
                    seen.add(token)

    def prompt_ids(self, slot: int) -> Int32s:
        """The slot's prompt; a view."""
        return self._tokens[slot, : self._ledger.prompt_tokens(slot)]

    def output_ids(self, slot: int) -> Int32s:
        """The slot's output so far; a view."""
        return self._tokens[slot, self._ledger.prompt_tokens(slot) : self._ledger.known_tokens(slot)]

    def choice(self, slot: int) -> int:
        """Index of the slot's choice in its request."""
        return self._choices[slot][0]

    def sampling(self, slot: int) -> TokenSampling:
        return self._choices[slot][1]

    def seen_tokens(self, slot: int) -> SeenTokens | None:
        """The slot's tokens so far, counted; None where no penalty needs it."""
        return self._seen.get(slot)

    def missing_ids(self, slot: int) -> Int64s | None:
        """Ids that the slot must never sample, since no token has them; None where there are none."""
        return self._missing.get(slot)

    @property
    def has_missing_ids(self) -> bool:
        """Whether `missing_ids` gives any of any slot."""
        return bool(self._missing)

    def take_best(self, slots: Iterable[int]) -> bool:
        """Whether each of `slots` takes the likeliest token of the model's own logits, and nothing is reported of it."""
        return self._adjusted.isdisjoint(slots)

    def reports_prompts(self, inputs: StepInputs) -> bool:
        """Whether log probabilities are reported of a prompt that a row of the step computes."""
        return bool(self._reported) and not self._reported.isdisjoint(inputs.slots.tolist())

    def prompt_logprobs(self, slot: int) -> int | None:
        """How many of the likeliest tokens are reported with each prompt token; None where no prompt is, or it was.

        It was with the row that sampled the first token.
        """
        return self._choices[slot][1].prompt_logprobs if slot in self._reported else None

    def _retire(self, slot: int) -> None:
        del self._choices[slot]
        self._seen.pop(slot, None)
        self._missing.pop(slot, None)
        self._adjusted.discard(slot)
        self._reported.discard(slot)

    def _open(self, opening: OpenSlot) -> None:
        slot, sampling = int(opening.slot), opening.sampling
        prompt, output = _ids(opening.prompt_ids), _ids(opening.output_ids)
        for ids in (prompt, output, *map(_ids, (sampling.biased_ids, sampling.allowed_ids, *sampling.bad_words))):
            self._check_vocabulary(slot, ids)
        self._tokens[slot, : prompt.size] = prompt
        self._tokens[slot, prompt.size : prompt.size + output.size] = output
        self._choices[slot] = (opening.choice, sampling)
        if not takes_best(sampling):
            self._adjusted.add(slot)
        if (seen := seen_tokens(sampling, prompt, output)) is not None:
            self._seen[slot] = seen
        if sampling.missing_ranges:
            self._missing[slot] = self._expanded(slot, _ids(sampling.missing_ranges))
        if sampling.prompt_logprobs is not None and not output.size:
            self._reported.add(slot)

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


def _ids(packed: bytes) -> Int32s:
    return np.frombuffer(packed, np.int32)
