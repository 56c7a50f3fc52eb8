"""A device that follows a script instead of a model, for tests and for measuring everything but a model.

Must not know: torch, models, policy.

Its KV cache is real in all but content: each executed token is written into the cell that the slot's page table names, and
sampling reads the whole history back through the page table. A wrong page, a page freed twice or shared by mistake, a lost
or repeated token therefore show in the output, and a cell that nobody wrote is an InvariantViolated.
"""

from collections.abc import Callable
from typing import Final, Protocol

import attrs
import numpy as np

from layered_llm.domain.columns import pack_i8, pack_i32, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.logprobs import NO_ENTRIES, LogprobColumns, LogprobEntries, PromptLogprobs
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep, StepCompleted
from layered_llm.runtime.device.device import HostDevice
from layered_llm.runtime.device.host_slots import HostSlots
from layered_llm.runtime.device.step_inputs import Int32s, StepInputs
from layered_llm.runtime.scripted.scripts import NOT_FINITE, History, Script, scripted_logprobs, scripted_prompt_logprobs

_UNWRITTEN: Final = -1


@attrs.frozen(kw_only=True)
class ScriptedPace:
    """How long a step with rows takes: `step_us + token_us * tokens`."""

    step_us: int
    token_us: int


class Yields(Protocol):
    """Says how many tokens a row yields."""

    def __call__(self, step: int, slot: int, most: int, /) -> int:
        """From 0 to `most`; not 0 for a slot in every step."""


def one_token(_step: int, _slot: int, _most: int) -> int:
    """What a device without drafts yields."""
    return 1


def uneven_tokens(step: int, slot: int, most: int) -> int:
    """All counts from 0 to `most`, in no rhythm that a schedule could fall in with (Knuth's multiplicative hash)."""
    return ((step * 2_654_435_761 + slot * 40_503) >> 8) % (most + 1)


class ScriptedDevice(HostDevice):
    """A Device whose sampled tokens come from `script`.

    `wait` is called with seconds and lets the step's time pass, real or virtual; it is not called where that time is zero.
    """

    def __init__(
        self,
        *,
        limits: RuntimeLimits,
        script: Script,
        pace: ScriptedPace,
        wait: Callable[[float], None],
        now_us: Callable[[], int],
        yields: Yields = one_token,
    ) -> None:
        super().__init__()
        self._limits = limits
        self._script = script
        self._pace = pace
        self._wait = wait
        self._now_us = now_us
        self._yields = yields
        self._slots = HostSlots(limits)
        self._cells: Int32s = np.full(limits.pages * limits.page_size_tokens, _UNWRITTEN, np.int32)

    @property
    def limits(self) -> RuntimeLimits:
        return self._limits

    def _execute(self, step: ExecuteStep) -> StepCompleted:
        """Raises InvariantViolated for a step that contradicts the slots' state or reads a cell that nobody wrote."""
        started_us = self._now_us()
        inputs = self._slots.apply(step)
        self._cells[inputs.cells] = inputs.token_ids
        self._let_time_pass(inputs.token_ids.size)
        sampled = [self._row_tokens(step, inputs, row) for row in inputs.sampled.tolist()]
        failed = [
            row for row, tokens in zip(inputs.sampled.tolist(), sampled, strict=True) if (NOT_FINITE, NO_ENTRIES) in tokens
        ]
        token_ids = [max(token, 0) for tokens in sampled for token, _ in tokens]
        counts = None if all(len(tokens) == 1 for tokens in sampled) else [len(tokens) for tokens in sampled]
        prompt_logprobs = self._prompt_logprobs(inputs) if self._slots.reports_prompts(inputs) else ()
        self._slots.append_sampled(inputs, np.array(token_ids, np.int32), None if counts is None else np.array(counts))
        return StepCompleted(
            step=step.step,
            token_ids=pack_i32(token_ids),
            token_counts=b"" if counts is None else pack_i32(counts),
            device_us=self._now_us() - started_us,
            open_slots=len(self._slots.choices),
            logprobs=LogprobColumns.of(logprobs for tokens in sampled for _, logprobs in tokens),
            prompt_logprobs=PromptLogprobs.of(prompt_logprobs),
            failed_rows=pack_i32(failed),
            failures=pack_i8([FinishReason.ERROR] * len(failed)),
        )

    def _prompt_logprobs(self, inputs: StepInputs) -> list[LogprobColumns | None]:
        """What each row reports of its prompt."""
        table = zip(inputs.slots.tolist(), inputs.starts.tolist(), inputs.counts.tolist(), strict=True)
        return [self._reported_by_row(slot, start, count) for slot, start, count in table]

    def _reported_by_row(self, slot: int, start: int, count: int) -> LogprobColumns | None:
        choice, size = self._slots.choices[slot], self._limits.vocabulary_size
        top = choice.sampling.prompt_logprobs
        if top is None or slot not in self._slots.reported:
            return None
        return scripted_prompt_logprobs(choice.prompt_ids, start, count, top, size, missing_ids=choice.missing)

    def _row_tokens(self, step: ExecuteStep, inputs: StepInputs, row: int) -> list[tuple[int, LogprobEntries]]:
        """What the row samples, no further than to an end id; each token but the last is computed too."""
        slot, end, goes_on = int(inputs.slots[row]), int(inputs.ends[row]), unpack_i32(step.starts)[row] == GO_ON
        most, pages = unpack_i32(step.counts)[row] if goes_on else 1, inputs.page_tables[slot]
        sampled: list[tuple[int, LogprobEntries]] = []
        last_ids = {NOT_FINITE, *self._slots.choices[slot].sampling.end_ids}
        for position in range(end, end + self._yields(step.step, slot, most)):
            if sampled:
                page, offset = divmod(position - 1, self._limits.page_size_tokens)
                self._cells[pages[page] * self._limits.page_size_tokens + offset] = sampled[-1][0]
            sampled.append(self._sample(slot, pages, position))
            if sampled[-1][0] in last_ids:
                break
        return sampled

    def _let_time_pass(self, tokens: int) -> None:
        duration_us = self._pace.step_us + self._pace.token_us * tokens
        if tokens and duration_us:
            self._wait(duration_us / 1e6)

    def _sample(self, slot: int, page_table: Int32s, end: int) -> tuple[int, LogprobEntries]:
        page_size = self._limits.page_size_tokens
        pages = page_table[: -(-end // page_size)]
        token_ids = self._cells.reshape(-1, page_size)[pages].reshape(-1)[:end]
        if (token_ids == _UNWRITTEN).any():
            raise InvariantViolated(f"slot {slot} reads a token that was never computed, from pages {pages.tolist()}")
        choice = self._slots.choices[slot]
        history = History(
            token_ids=token_ids,
            prompt_tokens=choice.prompt_ids.size,
            choice=choice.choice,
            sampling=choice.sampling,
            missing_ids=choice.missing,
        )
        token = self._script.next_token(history)
        return token, scripted_logprobs(history, token, self._limits.vocabulary_size)
