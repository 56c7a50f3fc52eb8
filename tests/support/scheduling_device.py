"""A runtime without a model: executes steps in order, answers late, and finds every fault of the page and slot accounting.

Keys and values are modelled as (owner, position): a row that reads a page which someone else wrote meanwhile is seen at once.
"""

from collections import deque
from collections.abc import Callable

import attrs

from layered_llm.domain.columns import pack_i32, rows, unpack_i8, unpack_i32
from layered_llm.domain.ids import PageId, SlotId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, OpenSlot, StepCompleted

Script = Callable[[int, int, int], int]
"""The token at (seed, choice, output position)."""


def counting_script(seed: int, choice: int, position: int) -> int:
    return 1_000_000 + 10_000 * (seed % 90) + 1_000 * (choice % 9) + position % 1_000


@attrs.define(kw_only=True)
class DeviceSlot:
    opened: OpenSlot
    incarnation: int
    pages: list[PageId] = attrs.field(factory=list)
    computed: int = 0
    output: list[int] = attrs.field(factory=list)

    @property
    def prompt_tokens(self) -> int:
        return rows("i", self.opened.prompt_ids)


@attrs.define(kw_only=True)
class Launched:
    result: StepCompleted
    touched_slots: set[SlotId]
    touched_pages: set[PageId]


@attrs.define(kw_only=True)
class FakeDevice:
    limits: RuntimeLimits
    script: Script = counting_script
    slots: dict[SlotId, DeviceSlot] = attrs.field(init=False, factory=dict)
    launched: deque[Launched] = attrs.field(init=False, factory=deque)
    steps: list[ExecuteStep] = attrs.field(init=False, factory=list)
    _written: dict[tuple[PageId, int], tuple[int, int]] = attrs.field(init=False, factory=dict)
    _incarnations: int = attrs.field(init=False, default=0)

    def launch(self, step: ExecuteStep) -> None:
        assert step.step == len(self.steps) + 1
        self.steps.append(step)
        for slot in unpack_i32(step.retired):
            del self.slots[SlotId(slot)]
        for opened in step.opened:
            self._open(opened)
        self._append_pages(step)
        tokens, slots, pages = self._execute(step)
        result = StepCompleted(step=step.step, token_ids=pack_i32(tokens), device_us=0, open_slots=len(self.slots))
        self.launched.append(Launched(result=result, touched_slots=slots, touched_pages=pages))

    def finish(self) -> StepCompleted:
        return self.launched.popleft().result

    def _open(self, opened: OpenSlot) -> None:
        assert opened.slot not in self.slots
        assert 0 <= opened.slot < self.limits.slots
        assert not any(opened.slot in step.touched_slots for step in self.launched), "slot of a step in flight is used again"
        self._incarnations += 1
        self.slots[opened.slot] = DeviceSlot(opened=opened, incarnation=self._incarnations)

    def _append_pages(self, step: ExecuteStep) -> None:
        ids = iter(unpack_i32(step.page_ids))
        table = zip(unpack_i32(step.page_slots), unpack_i32(step.page_counts), unpack_i32(step.page_offsets), strict=True)
        for slot, count, offset in table:
            pages = self.slots[SlotId(slot)].pages
            assert offset == len(pages)
            for page in (PageId(next(ids)) for _ in range(count)):
                assert 0 <= page < self.limits.pages
                assert not any(page in other.pages for other in self.slots.values()), "page has two owners"
                assert not any(page in step.touched_pages for step in self.launched), "page of a step in flight is given away"
                pages.append(page)
        assert next(ids, None) is None

    def _execute(self, step: ExecuteStep) -> tuple[list[int], set[SlotId], set[PageId]]:
        tokens: list[int] = []
        slots, pages = set(), set()
        columns = (unpack_i32(step.slots), unpack_i32(step.starts), unpack_i32(step.counts), unpack_i8(step.samples))
        for slot_id, start, count, samples in zip(*columns, strict=True):
            slot = self.slots[SlotId(slot_id)]
            assert SlotId(slot_id) not in slots, "two rows of one slot in one step"
            slots.add(SlotId(slot_id))
            pages.update(slot.pages)
            self._compute(slot, start, count)
            assert bool(samples) == (slot.computed >= slot.prompt_tokens)
            if samples:
                tokens.append(self._sample(slot))
        return tokens, slots, pages

    def _compute(self, slot: DeviceSlot, start: int, count: int) -> None:
        size = self.limits.page_size_tokens
        assert count > 0
        assert start == slot.computed
        assert start + count <= slot.prompt_tokens + len(slot.output), "a token is computed before it is known"
        for position in range(start):
            assert (slot.incarnation, position) == self._written[slot.pages[position // size], position % size]
        for position in range(start, start + count):
            self._written[slot.pages[position // size], position % size] = (slot.incarnation, position)
        slot.computed += count

    def _sample(self, slot: DeviceSlot) -> int:
        sampling = slot.opened.sampling
        token = self.script(sampling.seed, slot.opened.choice, len(slot.output))
        if len(slot.output) < sampling.min_tokens and token in sampling.end_ids:
            token = max(sampling.end_ids) + 1
        slot.output.append(token)
        return token
