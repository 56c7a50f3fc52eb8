"""Drives a Device by hand-made steps, with the simplest page allocation that works."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from layered_llm.domain.columns import pack_f32, pack_i8, pack_i32, unpack_i32
from layered_llm.domain.ids import SlotId, StepId
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, OpenSlot, StepCompleted
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.device.device import Device
from support.logprobs import Pairs, pairs_of


def greedy(*, min_tokens: int = 0, end_ids: tuple[int, ...] = ()) -> TokenSampling:
    return TokenSampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, min_tokens=min_tokens, end_ids=end_ids)


def sampling(
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    min_tokens: int = 0,
    end_ids: tuple[int, ...] = (),
    biases: Mapping[int, float] | None = None,
    **others: Any,
) -> TokenSampling:
    return TokenSampling(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        min_tokens=min_tokens,
        end_ids=end_ids,
        biased_ids=pack_i32(biases or ()),
        biases=pack_f32((biases or {}).values()),
        **others,
    )


def open_slot(
    slot: int, prompt: Sequence[int], output: Sequence[int] = (), *, params: TokenSampling | None = None, choice: int = 0
) -> OpenSlot:
    return OpenSlot(
        slot=SlotId(slot),
        choice=choice,
        prompt_ids=pack_i32(prompt),
        output_ids=pack_i32(output),
        sampling=params or greedy(),
    )


def make_step(
    number: int = 1,
    *,
    retired: Sequence[int] = (),
    opened: Sequence[OpenSlot] = (),
    pages: Sequence[tuple[int, int, Sequence[int]]] = (),
    rows: Sequence[tuple[int, int, int, bool]] = (),
) -> ExecuteStep:
    """`pages` holds (slot, offset, page ids), `rows` (slot, start, count, samples)."""
    return ExecuteStep(
        step=StepId(number),
        retired=pack_i32(retired),
        opened=tuple(opened),
        page_slots=pack_i32(slot for slot, _, _ in pages),
        page_offsets=pack_i32(offset for _, offset, _ in pages),
        page_counts=pack_i32(len(ids) for _, _, ids in pages),
        page_ids=pack_i32(page for _, _, ids in pages for page in ids),
        slots=pack_i32(row[0] for row in rows),
        starts=pack_i32(row[1] for row in rows),
        counts=pack_i32(row[2] for row in rows),
        samples=pack_i8(int(row[3]) for row in rows),
    )


def execute(device: Device, step: ExecuteStep) -> StepCompleted:
    device.submit(step)
    return device.collect()


@attrs.define
class _Choice:
    opening: OpenSlot
    output_tokens: int
    known: int
    computed: int = 0
    pages: int = 0
    tokens: list[int] = attrs.Factory(list)


@attrs.define
class Driver:
    """Runs choices on a device: one row for each running choice and step, prefill in chunks of `chunk_tokens`."""

    _device: Device
    _chunk_tokens: int
    _stride: int = 1
    """Hands out every `stride`-th page, so that the pages of a choice do not lie side by side."""
    _choices: dict[int, _Choice] = attrs.Factory(dict)
    _unsent: list[OpenSlot] = attrs.Factory(list)
    _retired: list[int] = attrs.Factory(list)
    _steps: int = 0
    _pages_used: int = 0
    logprobs: dict[int, list[Pairs]] = attrs.Factory(dict)
    """Of each slot's sampled tokens, where a step told any."""
    prompt_logprobs: dict[int, list[Pairs]] = attrs.Factory(dict)
    """Of each slot's prompt tokens, where a step told any."""
    prompt_ranks: dict[int, list[int]] = attrs.Factory(dict)
    """The same tokens' ranks."""
    last: StepCompleted | None = None

    def add(self, opening: OpenSlot, *, output_tokens: int) -> None:
        """Runs `opening` from the next step on until it has sampled `output_tokens`."""
        known = (len(opening.prompt_ids) + len(opening.output_ids)) // 4
        self._choices[opening.slot] = _Choice(opening, output_tokens, known)
        self._unsent.append(opening)

    def run(self) -> dict[int, list[int]]:
        """Steps until every choice is done; their sampled tokens by slot."""
        outputs: dict[int, list[int]] = {}
        while self._choices:
            outputs |= self.step()
        self.step()
        return outputs

    def step(self) -> dict[int, list[int]]:
        """One step; the tokens of the choices that ended in it."""
        self._steps += 1
        rows, pages = [], []
        for slot, choice in self._choices.items():
            count = min(self._chunk_tokens, choice.known - choice.computed)
            end = choice.computed + count
            rows.append((slot, choice.computed, count, end == choice.known))
            new = self._new_pages(choice, end)
            if new:
                pages.append((slot, choice.pages - len(new), new))
            choice.computed = end
        opened, retired = self._unsent, self._retired
        self._unsent, self._retired = [], []
        self.last = execute(self._device, make_step(self._steps, retired=retired, opened=opened, pages=pages, rows=rows))
        sampled = unpack_i32(self.last.token_ids)
        slots = [slot for slot, _, _, samples in rows if samples]
        for slot, token in zip(slots, sampled, strict=True):
            self._choices[slot].tokens.append(token)
            self._choices[slot].known += 1
        for slot, pairs in zip(slots, pairs_of(self.last.logprobs), strict=False):
            self.logprobs.setdefault(slot, []).append(pairs)
        for (slot, *_), columns in zip(rows, self.last.prompt_logprobs or (), strict=False):
            self.prompt_logprobs.setdefault(slot, []).extend(pairs_of(columns))
            self.prompt_ranks.setdefault(slot, []).extend(one.rank for one in columns or ())
        return self._take_ended()

    def _new_pages(self, choice: _Choice, end: int) -> list[int]:
        limits = self._device.limits
        needed = -(-end // limits.page_size_tokens) - choice.pages
        numbers = range(self._pages_used, self._pages_used + needed)
        rounds = -(-limits.pages // self._stride)
        ids = [number // rounds + (number % rounds) * self._stride for number in numbers]
        assert all(page < limits.pages for page in ids), "the test needs a larger pool"
        self._pages_used += needed
        choice.pages += needed
        return ids

    def _take_ended(self) -> dict[int, list[int]]:
        ended = {slot: c.tokens for slot, c in self._choices.items() if len(c.tokens) >= c.output_tokens}
        for slot in ended:
            del self._choices[slot]
            self._retired.append(slot)
        return ended


def generate(
    device: Device,
    prompts: Sequence[Sequence[int]],
    *,
    output_tokens: int,
    chunk_tokens: int = 1 << 20,
    params: Sequence[TokenSampling] | None = None,
) -> list[list[int]]:
    """Outputs of `prompts`, run together from the first step on."""
    driver = Driver(device, chunk_tokens)
    for slot, prompt in enumerate(prompts):
        driver.add(open_slot(slot, prompt, params=params[slot] if params else None), output_tokens=output_tokens)
    outputs = driver.run()
    return [outputs[slot] for slot in range(len(prompts))]
