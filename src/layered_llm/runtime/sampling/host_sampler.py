"""The sampler of a device whose logits and token values are on the host: each slot's parameters, applied row by row in numpy.

Must not know: models, links, how a token is drawn.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from layered_llm.domain.messages.logprobs import LogprobColumns, PromptLogprobs
from layered_llm.runtime.device.host_slots import HostSlots, SampleRow, tokens_looked_at
from layered_llm.runtime.device.step_inputs import Float32s, StepInputs
from layered_llm.runtime.device.step_model import Sampled
from layered_llm.runtime.sampling.logit_adjustments import mask_missing
from layered_llm.runtime.sampling.logprobs import first_logprob, following_logprobs, has_nan, raw_logprobs
from layered_llm.runtime.sampling.sampler import best_tokens, sample_tokens


class HostSampler:
    """A Sampler. Rows that all take the likeliest token of the model's own logits need no object each."""

    def __init__(self, slots: HostSlots) -> None:
        self._slots = slots

    def sample(self, logits: Float32s, inputs: StepInputs) -> Sampled:
        slots = inputs.sampled_slots.tolist()
        if not self._slots.adjusted.isdisjoint(slots):
            return self._sample_rows(logits, inputs, [self._row(slot) for slot in slots])
        if self._slots.missing:
            mask_missing(logits, (self._slots.choices[slot].missing for slot in slots))
        best, failed = best_tokens(logits)
        return Sampled(token_ids=best.astype(np.int32), failed_rows=_rows_of(failed, inputs))

    def prompt_logprobs(
        self, hidden: Float32s, inputs: StepInputs, logits_of: Callable[[Float32s], Float32s]
    ) -> tuple[PromptLogprobs | None, frozenset[int]]:
        reported = list(self._reported(hidden, inputs, logits_of))
        failed = frozenset(row for row, columns in enumerate(reported) if columns is not None and has_nan(columns))
        return PromptLogprobs.of([None if row in failed else columns for row, columns in enumerate(reported)]), failed

    def _sample_rows(self, logits: Float32s, inputs: StepInputs, rows: list[SampleRow]) -> Sampled:
        raw = raw_logprobs(logits, rows)
        token_ids, not_finite = sample_tokens(logits, rows)
        failed = {*not_finite, *(raw.failed if raw is not None else ())}
        logprobs = None if raw is None else raw.columns(token_ids, failed)
        return Sampled(token_ids=token_ids, logprobs=logprobs, failed_rows=_rows_of(failed, inputs))

    def _row(self, slot: int) -> SampleRow:
        choice, output = self._slots.choices[slot], self._slots.output_ids(slot)
        looked_at = tokens_looked_at(choice.sampling) if choice.sampling.bad_words else 0
        return SampleRow(
            sampling=choice.sampling,
            choice=choice.choice,
            output_position=output.size,
            seen=choice.seen,
            missing=choice.missing,
            recent=tuple(output[-looked_at:].tolist()) if looked_at else (),
        )

    def _reported(
        self, hidden: Float32s, inputs: StepInputs, logits_of: Callable[[Float32s], Float32s]
    ) -> Iterator[LogprobColumns | None]:
        table = (inputs.slots.tolist(), inputs.starts.tolist(), inputs.counts.tolist(), np.cumsum(inputs.counts).tolist())
        for slot, start, count, end in zip(*table, strict=True):
            choice, prompt = self._slots.choices[slot], self._slots.choices[slot].prompt_ids
            top = choice.sampling.prompt_logprobs
            if top is None or slot not in self._slots.reported or start >= prompt.size:
                yield None
                continue
            following = prompt[start + 1 : start + count + 1]
            first = end - count
            hidden_before = hidden[first : first + len(following)]
            following_columns = following_logprobs(hidden_before, following, top, logits_of, choice.missing)
            yield LogprobColumns.joined([first_logprob(int(prompt[0])), following_columns]) if start == 0 else following_columns


def _rows_of(failed: Iterable[int], inputs: StepInputs) -> frozenset[int]:
    """The rows of the step that are the `failed` ones of those that sample."""
    return frozenset(int(inputs.sampled[index]) for index in failed)
