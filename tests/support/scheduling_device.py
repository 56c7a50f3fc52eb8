"""A runtime without a model: executes steps in order, answers late, and finds every fault of the page and slot accounting.

Keys and values are modelled as a hash of everything up to their token and of the cache root: a row that reads a page which
holds anything but its own beginning is seen at once, whoever wrote it.
"""

from collections import deque
from collections.abc import Callable

import attrs

from layered_llm.domain.columns import pack_i8, pack_i32, rows, unpack_i8, unpack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import PageId, SlotId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep, OpenSlot, StepCompleted
from layered_llm.domain.placement import CacheRoot
from layered_llm.runtime.scripted.scripted_device import Yields, one_token

Script = Callable[[int, int, int], int]
"""The token at (seed, choice, output position), or FAILS."""
FAILS = -1
"""In place of a token: the row has no result, and its pages hold what nobody may read who did not before."""
Cost = Callable[[ExecuteStep], int]
"""Microseconds that a step takes."""


def counting_script(seed: int, choice: int, position: int) -> int:
    return 1_000_000 + 10_000 * (seed % 90) + 1_000 * (choice % 9) + position % 1_000


def costs_nothing(_step: ExecuteStep) -> int:
    return 0


@attrs.define(kw_only=True)
class DeviceSlot:
    opened: OpenSlot
    incarnation: int
    tokens: list[int]
    cache_root: CacheRoot
    pages: list[PageId] = attrs.field(factory=list)
    computed: int = 0
    is_fresh: bool = True
    contents: list[int] = attrs.field(factory=list)
    """What the cell of each token must hold."""

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - rows("i", self.opened.prompt_ids)

    def content(self, position: int) -> int:
        while len(self.contents) <= position:
            before = self.contents[-1] if self.contents else hash(self.cache_root)
            self.contents.append(hash((before, self.tokens[len(self.contents)])))
        return self.contents[position]


@attrs.define(kw_only=True)
class Launched:
    result: StepCompleted
    spoilt_pages: set[PageId]
    """Of slots whose rows failed."""
    touched_slots: set[SlotId]
    touched_pages: dict[PageId, set[int]]
    """The incarnations of slots whose rows read or write each page."""


@attrs.define(kw_only=True)
class FakeDevice:
    limits: RuntimeLimits
    script: Script = counting_script
    cost: Cost = costs_nothing
    yields: Yields = one_token
    cache_roots: dict[int, CacheRoot] = attrs.field(init=False, factory=dict)
    """By the seed of the request."""
    slots: dict[SlotId, DeviceSlot] = attrs.field(init=False, factory=dict)
    launched: deque[Launched] = attrs.field(init=False, factory=deque)
    steps: list[ExecuteStep] = attrs.field(init=False, factory=list)
    _written: dict[tuple[PageId, int], int] = attrs.field(init=False, factory=dict)
    _spoilt: set[PageId] = attrs.field(init=False, factory=set)
    """Pages of rows that failed, as the scheduler was told, and that nobody has written since."""
    _incarnations: int = attrs.field(init=False, default=0)

    def launch(self, step: ExecuteStep) -> None:
        assert step.step == len(self.steps) + 1
        self.steps.append(step)
        for slot in unpack_i32(step.retired):
            del self.slots[SlotId(slot)]
        for opened in step.opened:
            self._open(opened)
        self._set_pages(step)
        step = attrs.evolve(step, starts=pack_i32(self._starts(step)))
        sampled, slots, pages = self._execute(step)
        failed = [row for row, tokens in sampled.items() if FAILS in tokens]
        counts = [len(tokens) for tokens in sampled.values()]
        result = StepCompleted(
            step=step.step,
            token_ids=pack_i32(max(token, 0) for tokens in sampled.values() for token in tokens),
            token_counts=b"" if set(counts) <= {1} else pack_i32(counts),
            device_us=self.cost(step),
            open_slots=len(self.slots),
            failed_rows=pack_i32(failed),
            failures=pack_i8([FinishReason.ERROR] * len(failed)),
        )
        spoilt = {page for row in failed for page in self.slots[SlotId(unpack_i32(step.slots)[row])].pages}
        self.launched.append(Launched(result=result, spoilt_pages=spoilt, touched_slots=slots, touched_pages=pages))

    def finish(self) -> StepCompleted:
        launched = self.launched.popleft()
        self._spoilt |= launched.spoilt_pages
        return launched.result

    def _open(self, opened: OpenSlot) -> None:
        assert opened.slot not in self.slots
        assert 0 <= opened.slot < self.limits.slots
        assert not any(opened.slot in step.touched_slots for step in self.launched), "slot of a step in flight is used again"
        self._incarnations += 1
        self.slots[opened.slot] = DeviceSlot(
            opened=opened,
            incarnation=self._incarnations,
            tokens=[*unpack_i32(opened.prompt_ids), *unpack_i32(opened.output_ids)],
            cache_root=self.cache_roots.get(opened.sampling.seed, CacheRoot()),
        )

    def _set_pages(self, step: ExecuteStep) -> None:
        ids = iter(unpack_i32(step.page_ids))
        table = zip(unpack_i32(step.page_slots), unpack_i32(step.page_counts), unpack_i32(step.page_offsets), strict=True)
        for slot_id, count, offset in table:
            slot = self.slots[SlotId(slot_id)]
            assert 0 < count
            assert 0 <= offset <= len(slot.pages)
            slot.pages[offset : offset + count] = [PageId(next(ids)) for _ in range(count)]
            assert all(0 <= page < self.limits.pages for page in slot.pages)
            assert len(set(slot.pages)) == len(slot.pages), "a page stands twice in one table"
            self._read(slot, min(slot.computed, (offset + count) * self.limits.page_size_tokens))
        assert next(ids, None) is None

    def _starts(self, step: ExecuteStep) -> list[int]:
        """Where the rows start, those that go on with what is known of their slots."""
        starts: list[int] = []
        for slot_id, start in zip(unpack_i32(step.slots), unpack_i32(step.starts), strict=True):
            slot = self.slots[SlotId(slot_id)]
            assert start != GO_ON or slot.computed == len(slot.tokens) - 1, "a row goes on before its prefill is complete"
            starts.append(slot.computed if start == GO_ON else start)
        return starts

    def _execute(self, step: ExecuteStep) -> tuple[dict[int, list[int]], set[SlotId], dict[PageId, set[int]]]:
        """The tokens of each sampling row, and what the step touches. All rows have their starts."""
        sampled: dict[int, list[int]] = {}
        slots: set[SlotId] = set()
        pages: dict[PageId, set[int]] = {}
        columns = (unpack_i32(step.slots), unpack_i32(step.starts), unpack_i32(step.counts), unpack_i8(step.samples))
        for row, (slot_id, start, count, samples) in enumerate(zip(*columns, strict=True)):
            slot = self.slots[SlotId(slot_id)]
            assert SlotId(slot_id) not in slots, "two rows of one slot in one step"
            slots.add(SlotId(slot_id))
            for page in slot.pages:
                pages.setdefault(page, set()).add(slot.incarnation)
            is_decode = samples and start == len(slot.tokens) - 1
            self._compute(slot, start, 1 if is_decode else count)
            assert bool(samples) == (slot.computed == len(slot.tokens))
            if samples:
                most = count if is_decode else 1
                assert start + count <= len(slot.pages) * self.limits.page_size_tokens, "a row has no pages for its tokens"
                sampled[row] = self._sample_run(slot, self.yields(step.step, slot_id, most))
        return sampled, slots, pages

    def _sample_run(self, slot: DeviceSlot, count: int) -> list[int]:
        """So many tokens; all known tokens but the last are computed then."""
        run: list[int] = []
        for _ in range(count):
            if run:
                self._compute(slot, slot.computed, 1)
            run.append(self._sample(slot))
        slot.computed = len(slot.tokens) - 1
        return run

    def _compute(self, slot: DeviceSlot, start: int, count: int) -> None:
        size = self.limits.page_size_tokens
        assert count > 0
        assert start == slot.computed or (slot.is_fresh and start % size == 0)
        assert start + count <= len(slot.tokens), "a token is computed before it is known"
        self._read(slot, start)
        if slot.is_fresh:
            assert self._spoilt.isdisjoint(slot.pages[: start // size]), "a page of a row that failed is shared"
        for position in range(start, start + count):
            page = slot.pages[position // size]
            self._check_exclusive(slot, page)
            self._spoilt.discard(page)
            self._written[page, position % size] = slot.content(position)
        slot.computed, slot.is_fresh = start + count, False

    def _read(self, slot: DeviceSlot, tokens: int) -> None:
        size = self.limits.page_size_tokens
        for position in range(tokens):
            assert slot.content(position) == self._written[slot.pages[position // size], position % size]

    def _check_exclusive(self, slot: DeviceSlot, page: PageId) -> None:
        """A page that is written stands in no other table, and no step in flight of another choice names it."""
        assert not any(page in other.pages for other in self.slots.values() if other is not slot), "page has two owners"
        for step in self.launched:
            assert step.touched_pages.get(page, set()) <= {slot.incarnation}, "page of a step in flight is given away"

    def _sample(self, slot: DeviceSlot) -> int:
        sampling = slot.opened.sampling
        token = self.script(sampling.seed, slot.opened.choice, slot.output_tokens)
        if slot.output_tokens < sampling.min_tokens and token in sampling.end_ids:
            token = max(sampling.end_ids) + 1
        slot.tokens.append(token)
        return token
