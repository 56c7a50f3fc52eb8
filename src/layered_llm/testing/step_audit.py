"""Steps on the link to the runtime, held against the aborts and the failed rows that the scheduler had taken before.

Must not know: the scheduler.

Which request a slot belongs to is told by no message: it is found by prompt and seed, and left open where two requests share
both. A step that was planned before an abort may be sent behind it, but at the same moment of virtual time.
"""

import math
from collections.abc import Callable, Iterator

import attrs

from layered_llm.domain.columns import unpack_i8, unpack_i32
from layered_llm.domain.ids import RequestId, StepId
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep, OpenSlot, RuntimeReady, StepCompleted
from layered_llm.domain.messages.text_scheduler import Admit

Origin = tuple[bytes, int]
"""Prompt and seed."""


@attrs.define(eq=False)
class _Slot:
    """An open slot of the runtime."""

    request: RequestId | None
    pages: list[int] = attrs.field(factory=list)
    cursor: int = 0
    """Where its next row starts, if those in flight yield nothing."""
    in_flight: int = 0
    """Tokens that rows in flight may compute of it beyond that."""


@attrs.define(eq=False)
class StepAudit:
    """Adds a sentence to `_broken` for each step that breaks C5."""

    _now: Callable[[], float]
    _broken: list[str]
    _page_size_tokens: int = attrs.field(init=False, default=1)
    _origins: dict[Origin, set[RequestId]] = attrs.field(init=False, factory=dict)
    _aborted_s: dict[RequestId, float] = attrs.field(init=False, factory=dict)
    _slots: dict[int, _Slot] = attrs.field(init=False, factory=dict)
    _written: dict[StepId, dict[int, int]] = attrs.field(init=False, factory=dict)
    """For each step in flight the slot that writes each page."""
    _rows: dict[StepId, list[tuple["_Slot", "_Slot", int]]] = attrs.field(init=False, factory=dict)
    """Of each step in flight its rows: the slot, the slot as it was when the step was sent, and how much the row adds to
    `in_flight` if it samples, else -1."""
    _spoilt_s: dict[int, float] = attrs.field(init=False, factory=dict)
    """When the scheduler learned that a row failed which had read or written the page; gone when it is written again."""
    _failed_s: float = attrs.field(init=False, default=math.inf)

    def sized(self, ready: RuntimeReady) -> None:
        self._page_size_tokens = ready.limits.page_size_tokens

    def admitted(self, admit: Admit) -> None:
        self._origins.setdefault((admit.prompt_ids, admit.sampling.seed), set()).add(admit.request)

    def aborted(self, request: RequestId) -> None:
        """The scheduler has taken the abort: what it plans from now on must not name the request."""
        self._aborted_s.setdefault(request, self._now())

    def completed(self, result: StepCompleted) -> None:
        self._written.pop(result.step, None)
        rows = self._rows.pop(result.step, [])
        yields = iter(unpack_i32(result.token_counts))
        for slot, _, most in rows:
            if most >= 0:
                slot.cursor += next(yields, 1) - (0 if most else 1)
                slot.in_flight -= most
        for row in unpack_i32(result.failed_rows):
            _, sent, _ = rows[row]
            if sent.request is not None:
                self.aborted(sent.request)
            self._spoilt_s |= dict.fromkeys(sent.pages, self._now())

    def failed(self) -> None:
        """The scheduler has taken the word of a rank that it is in no state to go on."""
        self._failed_s = min(self._failed_s, self._now())

    def sent(self, step: ExecuteStep) -> None:
        if self._now() > self._failed_s:
            self._broken.append(f"step {step.step} is sent after a rank has failed")
        for slot in unpack_i32(step.retired):
            self._slots.pop(slot, None)
        for opening in step.opened:
            self._slots[opening.slot] = _Slot(self._request_of(opening))
        for slot, held in self._slots.items():
            aborted_s = math.inf if held.request is None else self._aborted_s.get(held.request, math.inf)
            if self._now() > aborted_s:
                self._broken.append(
                    f"C5: step {step.step} keeps slot {slot} of request {held.request}, which was aborted or failed"
                )
        self._give_pages(step)
        self._check_found(step)
        self._written[step.step] = dict(self._writes(step))
        for page in self._written[step.step]:
            self._spoilt_s.pop(page, None)
        self._rows[step.step] = list(self._sent_rows(step))

    def _check_found(self, step: ExecuteStep) -> None:
        """Whoever begins within its tokens has found the pages before: none of them may be of a row that failed."""
        opened = {opening.slot for opening in step.opened}
        for slot, start in zip(unpack_i32(step.slots), unpack_i32(step.starts), strict=True):
            found = self._slots[slot].pages[: start // self._page_size_tokens] if slot in opened else []
            for page in found:
                if self._now() > self._spoilt_s.get(page, math.inf):
                    self._broken.append(f"C5: step {step.step} reads page {page}, which belonged to a row that failed")

    def _request_of(self, opening: OpenSlot) -> RequestId | None:
        requests = self._origins.get((opening.prompt_ids, opening.sampling.seed), set())
        return next(iter(requests)) if len(requests) == 1 else None

    def _give_pages(self, step: ExecuteStep) -> None:
        given, first = unpack_i32(step.page_ids), 0
        columns = zip(unpack_i32(step.page_slots), unpack_i32(step.page_counts), unpack_i32(step.page_offsets), strict=True)
        for slot, count, offset in columns:
            pages = given[first : first + count].tolist()
            first += count
            self._slots[slot].pages[offset : offset + count] = pages
            for writes in self._written.values():
                for page in pages:
                    if writes.get(page, slot) != slot:
                        self._broken.append(f"C5: step {step.step} gives away page {page}, which a step in flight writes")

    def _writes(self, step: ExecuteStep) -> Iterator[tuple[int, int]]:
        columns = zip(unpack_i32(step.slots), unpack_i32(step.starts), unpack_i32(step.counts), strict=True)
        for number, start, count in columns:
            slot = self._slots[number]
            first, end = (slot.cursor, slot.cursor + slot.in_flight + count) if start == GO_ON else (start, start + count)
            for page in slot.pages[first // self._page_size_tokens : (end - 1) // self._page_size_tokens + 1]:
                yield page, number

    def _sent_rows(self, step: ExecuteStep) -> Iterator[tuple["_Slot", "_Slot", int]]:
        columns = (unpack_i32(step.slots), unpack_i32(step.starts), unpack_i32(step.counts), unpack_i8(step.samples))
        for number, start, count, samples in zip(*columns, strict=True):
            slot = self._slots[number]
            yield slot, _Slot(slot.request, list(slot.pages)), (count if start == GO_ON else 0) if samples else -1
            if start == GO_ON:
                slot.in_flight += count
            else:
                slot.cursor = start + count
