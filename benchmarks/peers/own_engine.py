"""This project's runtime by itself: a device that is given steps as the scheduler gives them, without scheduler, text or links.

python -m benchmarks.peers.own_engine
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import trio
from benchmarks.peers.protocol import Decoded, Setup, Size, serve, weight_file_bytes

from layered_llm.domain.columns import pack_i8, pack_i32, unpack_f32, unpack_i32
from layered_llm.domain.ids import SlotId, StepId
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep, OpenSlot, StepCompleted
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.device.device import Device
from layered_llm.runtime.opening import open_device
from layered_llm.service.settings.settings import let_threads_sleep, load
from layered_llm.service.supervisor.supervisor_loop import find_checkpoint
from layered_llm.service.workers.runtime import monotonic_us, runtime_options

GREEDY = TokenSampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, min_tokens=0, end_ids=())
KV_ITEM_BYTES = {"float32": 4, "float16": 2}
MOST_STEPS = 128
"""That a context is decoded on at a time, and that an answer has."""


@attrs.frozen(kw_only=True)
class Row:
    """Tokens of one slot that a step computes."""

    slot: int
    start: int
    count: int
    samples: bool


@attrs.define
class Choice:
    """A prompt in a slot, with pages from the first to the last of its tokens."""

    slot: int
    prompt: Sequence[int]
    pages: Sequence[int]
    computed: int = 0
    output: list[int] = attrs.Factory(list)
    sampling: TokenSampling = GREEDY

    def opening(self) -> OpenSlot:
        prompt_ids = pack_i32(self.prompt)
        return OpenSlot(slot=SlotId(self.slot), choice=0, prompt_ids=prompt_ids, output_ids=b"", sampling=self.sampling)

    def row(self, budget: int) -> Row:
        """As much as is known and not computed yet, at most `budget` tokens."""
        known = len(self.prompt) + len(self.output)
        count = min(budget, known - self.computed)
        start = GO_ON if self.output else self.computed
        return Row(slot=self.slot, start=start, count=count, samples=self.computed + count == known)


class Own:
    """Slot and pages of each context stay; longer prompts use those behind them."""

    def __init__(self, setup: Setup, changes: Mapping[str, Any] = MappingProxyType({})) -> None:
        """`changes` are settings in place of those that the environment gives."""
        let_threads_sleep()
        settings = attrs.evolve(load(), **changes)
        self._page_tokens, self._budget = settings.page_size, settings.chunked_prefill_size
        kept = sum(self._pages_for(ids) for ids in setup.contexts)
        spare = kept + self._pages_for(range(setup.context_tokens))
        settings = attrs.evolve(settings, num_pages=kept + spare, threads=setup.threads)
        checkpoint = trio.run(find_checkpoint, settings).path
        self._weight_bytes = weight_file_bytes(checkpoint)
        self._kv_item_bytes = KV_ITEM_BYTES[settings.kv_dtype]
        self._device: Device = open_device(runtime_options(settings, checkpoint), now_us=monotonic_us)
        self._steps = 0
        self._contexts = self._choices(setup.contexts, slot=0, page=0)
        self._spare_page = kept
        self._finish(self._contexts, output_tokens=1)

    def size(self) -> Size:
        return Size(weight_bytes=self._weight_bytes, kv_item_bytes=self._kv_item_bytes)

    def decode(self, batch: int, steps: int) -> Decoded:
        choices = self._contexts[:batch]
        for choice in choices:
            choice.computed, choice.output = len(choice.prompt) - 1, []
        self._execute(opened=choices)
        step_s = []
        for _ in range(steps):
            started_s = time.perf_counter()
            self._step(choices)
            step_s.append(time.perf_counter() - started_s)
        self._execute(retired=choices)
        return Decoded(step_s=step_s, token_ids=[choice.output for choice in choices])

    def prefill(self, prompt: Sequence[int]) -> float:
        return self.answer([prompt], tokens=1)

    def answer(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Seconds that as many tokens for each of `prompts` take, asked all at once."""
        started_s = time.perf_counter()
        self._finish(self._choices(prompts, slot=len(self._contexts), page=self._spare_page), output_tokens=tokens)
        return time.perf_counter() - started_s

    def log_probabilities(self, prompt: Sequence[int]) -> Sequence[float]:
        """Of each token of `prompt` but the first, which nothing precedes."""
        (choice,) = self._choices([prompt], slot=len(self._contexts), page=self._spare_page)
        choice.sampling = attrs.evolve(GREEDY, prompt_logprobs=0)
        self._execute(opened=[choice])
        told: list[float] = []
        while not choice.output:
            for columns in self._step([choice]).prompt_logprobs or ():
                told.extend(() if columns is None else unpack_f32(columns.logprobs))
        self._execute(retired=[choice])
        return told[1:]

    def _choices(self, prompts: Sequence[Sequence[int]], *, slot: int, page: int) -> list[Choice]:
        """In slots from `slot` on, with pages from `page` on."""
        choices = []
        for number, prompt in enumerate(prompts, start=slot):
            end = page + self._pages_for(prompt)
            choices.append(Choice(slot=number, prompt=prompt, pages=range(page, end)))
            page = end
        return choices

    def _pages_for(self, prompt: Sequence[int]) -> int:
        return -(-(len(prompt) + MOST_STEPS) // self._page_tokens)

    def _finish(self, choices: Sequence[Choice], *, output_tokens: int) -> None:
        self._execute(opened=choices)
        running = choices
        while running:
            self._step(running)
            running = [choice for choice in running if len(choice.output) < output_tokens]
        self._execute(retired=choices)

    def _step(self, choices: Iterable[Choice]) -> StepCompleted:
        """Decodes first, what they leave of the budget to prompts in their order."""
        rows, left = [], self._budget
        ordered = sorted(choices, key=lambda choice: not choice.output)
        for choice in ordered:
            row = choice.row(left)
            if row.count:
                rows.append(row)
                choice.computed += row.count
                left -= row.count
        completed = self._execute(rows=rows)
        tokens = iter(unpack_i32(completed.token_ids))
        by_slot = {row.slot: next(tokens) for row in rows if row.samples}
        for choice in ordered:
            if choice.slot in by_slot:
                choice.output.append(by_slot[choice.slot])
        return completed

    def _execute(
        self, *, retired: Sequence[Choice] = (), opened: Sequence[Choice] = (), rows: Sequence[Row] = ()
    ) -> StepCompleted:
        self._steps += 1
        step = ExecuteStep(
            step=StepId(self._steps),
            retired=pack_i32(choice.slot for choice in retired),
            opened=tuple(choice.opening() for choice in opened),
            page_slots=pack_i32(choice.slot for choice in opened),
            page_offsets=pack_i32(0 for _ in opened),
            page_counts=pack_i32(len(choice.pages) for choice in opened),
            page_ids=pack_i32(page for choice in opened for page in choice.pages),
            slots=pack_i32(row.slot for row in rows),
            starts=pack_i32(row.start for row in rows),
            counts=pack_i32(row.count for row in rows),
            samples=pack_i8(int(row.samples) for row in rows),
        )
        self._device.submit(step)
        return self._device.collect()


if __name__ == "__main__":
    serve(Own)
