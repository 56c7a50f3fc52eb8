"""The CPU device: executes steps and samples.

Must not know: links, policy, how the model was read, how its layers are computed.
"""

from collections.abc import Callable, Iterable, Iterator

import attrs
import numpy as np

from layered_llm.domain.columns import pack_i8, pack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.logprobs import LogprobColumns, PromptLogprobs
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, StepCompleted
from layered_llm.runtime.device import DeviceError, one_line
from layered_llm.runtime.logit_adjustments import mask_missing
from layered_llm.runtime.logprobs import first_logprob, following_logprobs, has_nan, raw_logprobs
from layered_llm.runtime.matrices import Float32s
from layered_llm.runtime.sample_row import SampleRow, takes_best, tokens_looked_at
from layered_llm.runtime.sampler import best_tokens, sample_tokens
from layered_llm.runtime.slots import SlotTable
from layered_llm.runtime.step_model import StepModel
from layered_llm.runtime.step_rows import FlatTokens, StepRows


@attrs.frozen(kw_only=True)
class _Sampled:
    """What the rows of a step sampled."""

    token_ids: bytes = b""
    logprobs: LogprobColumns | None = None
    prompt_logprobs: PromptLogprobs | None = None
    failed_rows: frozenset[int] = frozenset()
    """Rows of the step whose logits are not finite."""


class CpuDevice:
    """A Device that runs a decoder and samples. Sampled tokens go into the slots' state and feed the next step from there."""

    def __init__(self, *, model: StepModel, limits: RuntimeLimits, now_us: Callable[[], int]) -> None:
        self._model = model
        self._limits = limits
        self._now_us = now_us
        self._slots = SlotTable(limits)
        self._adjusted: set[int] = set()
        """Slots whose last choice does not simply take the likeliest token; the others need no objects and no torch."""

    @property
    def limits(self) -> RuntimeLimits:
        return self._limits

    def execute(self, step: ExecuteStep) -> StepCompleted:
        """Raises DeviceError where torch fails, and InvariantViolated for a step that contradicts the slots' state."""
        started_us = self._now_us()
        rows = self._slots.apply(step)
        for opening in step.opened:
            if takes_best(opening.sampling):
                self._adjusted.discard(opening.slot)
            else:
                self._adjusted.add(opening.slot)
        try:
            sampled = self._run(rows) if rows.slots.size else _Sampled()
        except (RuntimeError, MemoryError) as error:
            raise DeviceError(f"step {step.step} failed: {one_line(error)}") from error
        return StepCompleted(
            step=step.step,
            token_ids=sampled.token_ids,
            device_us=self._now_us() - started_us,
            open_slots=self._slots.open_count,
            logprobs=sampled.logprobs,
            prompt_logprobs=sampled.prompt_logprobs,
            failed_rows=pack_i32(sorted(sampled.failed_rows)),
            failures=pack_i8([FinishReason.ERROR] * len(sampled.failed_rows)),
        )

    def _run(self, rows: StepRows) -> _Sampled:
        tokens = self._slots.flatten(rows)
        if self._slots.tells_prompts:
            return self._run_in_parts(rows, tokens)
        logits = self._model.sampled_logits(self._slots, rows, tokens)
        return self._sample(logits, rows) if rows.sampled.size else _Sampled()

    def _run_in_parts(self, rows: StepRows, tokens: FlatTokens) -> _Sampled:
        """Where more than the sampled tokens is asked of the layers' result."""
        hidden = self._model.hidden(self._slots, rows, tokens)
        told = list(self._prompt_logprobs(rows, hidden))
        failed = frozenset(row for row, columns in enumerate(told) if columns is not None and has_nan(columns))
        prompt_logprobs = PromptLogprobs.of([None if row in failed else columns for row, columns in enumerate(told)])
        if not rows.sampled.size:
            return _Sampled(prompt_logprobs=prompt_logprobs, failed_rows=failed)
        logits = self._model.logits(hidden[rows.last_tokens])
        sampled = self._sample(logits, rows)
        return attrs.evolve(sampled, prompt_logprobs=prompt_logprobs, failed_rows=failed | sampled.failed_rows)

    def _prompt_logprobs(self, rows: StepRows, hidden: Float32s) -> Iterator[LogprobColumns | None]:
        """What each row tells of its prompt: the tokens behind those that it computes."""
        behind = np.cumsum(rows.counts).tolist()
        table = zip(rows.slots.tolist(), rows.starts.tolist(), rows.counts.tolist(), behind, strict=True)
        for slot, start, count, end in table:
            top = self._slots.prompt_logprobs(slot)
            prompt = self._slots.prompt_ids(slot)
            if top is None or start >= prompt.size:
                yield None
                continue
            following = prompt[start + 1 : start + count + 1]
            first = end - count
            hidden_before = hidden[first : first + len(following)]
            told = following_logprobs(hidden_before, following, top, self._model.logits, self._slots.missing_ids(slot))
            yield LogprobColumns.joined([first_logprob(int(prompt[0])), told]) if start == 0 else told

    def _recent(self, slot: int) -> tuple[int, ...]:
        sampling = self._slots.sampling(slot)
        if not sampling.bad_words:
            return ()
        output, count = self._slots.output_ids(slot), tokens_looked_at(sampling)
        return tuple(output[max(output.size - count, 0) :].tolist())

    def _sample(self, logits: Float32s, rows: StepRows) -> _Sampled:
        if not self._adjusted.isdisjoint(rows.sampled_slots.tolist()):
            return self._sample_rows(logits, rows)
        if self._slots.has_missing_ids:
            mask_missing(logits, map(self._slots.missing_ids, rows.sampled_slots.tolist()))
        best, failed = best_tokens(logits)
        token_ids = best.astype(np.int32)
        self._slots.append_sampled(rows, token_ids)
        return _Sampled(token_ids=token_ids.tobytes(), failed_rows=_rows_of(failed, rows))

    def _sample_rows(self, logits: Float32s, rows: StepRows) -> _Sampled:
        sampled = [
            SampleRow(
                sampling=self._slots.sampling(slot),
                choice=self._slots.choice(slot),
                output_position=self._slots.output_tokens(slot),
                seen=self._slots.seen_tokens(slot),
                missing=self._slots.missing_ids(slot),
                recent=self._recent(slot),
            )
            for slot in rows.sampled_slots.tolist()
        ]
        raw = raw_logprobs(logits, sampled)
        token_ids, not_finite = sample_tokens(logits, sampled)
        failed = {*not_finite, *(raw.failed if raw is not None else ())}
        self._slots.append_sampled(rows, token_ids)
        logprobs = None if raw is None else raw.columns(token_ids, failed)
        return _Sampled(token_ids=token_ids.tobytes(), logprobs=logprobs, failed_rows=_rows_of(failed, rows))


def _rows_of(failed: Iterable[int], rows: StepRows) -> frozenset[int]:
    """The rows of the step that are the `failed` ones of those that sample."""
    return frozenset(int(rows.sampled[index]) for index in failed)
