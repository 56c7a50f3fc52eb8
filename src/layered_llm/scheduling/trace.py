"""What one step is made of, for whoever wants to look at the schedule.

Must not know: when the step ran, how it is shown.
"""

import enum

import attrs

from layered_llm.domain.ids import RequestId, SlotId, StepId
from layered_llm.scheduling.plan import PlannedStep
from layered_llm.scheduling.running import RunningChoices
from layered_llm.scheduling.waiting import WaitingQueue


@enum.unique
class Hold(enum.Enum):
    """Why no more choices were started for a step."""

    NOBODY_WAITS = enum.auto()
    NO_SLOT = enum.auto()
    """As many choices run as may, or the slots that are free are still named by a step in flight."""
    NO_PAGES = enum.auto()
    """What is known of the next choice does not fit beside those that run."""
    NOBODY_READY = enum.auto()
    """Who waits has a text worker that lags behind, or another choice of its request computes their prompt."""


@attrs.frozen(kw_only=True)
class TracedRow:
    """The tokens of one choice that the step computes."""

    slot: SlotId
    request: RequestId
    choice: int
    start: int
    """Tokens of the choice that are in front of these."""
    tokens: int
    is_prefill: bool


@attrs.frozen(kw_only=True)
class StepTrace:
    """One step and what stood around it when it was planned."""

    step: StepId
    rows: tuple[TracedRow, ...]
    retired: tuple[SlotId, ...]
    preempted: tuple[tuple[RequestId, int], ...]
    """Requests and their choices."""
    running: int
    """Choices."""
    waiting: int
    pages_free: int
    pages_cached: int
    """Held by the prefix tree alone."""
    pages_used: int
    """All others, those that wait for a step in flight with them."""
    hold: Hold

    @property
    def decode_rows(self) -> int:
        return sum(not row.is_prefill for row in self.rows)

    @property
    def prefill_tokens(self) -> int:
        return sum(row.tokens for row in self.rows if row.is_prefill)


def trace_step(planned: PlannedStep, *, waiting: WaitingQueue, running: RunningChoices, hold: Hold) -> StepTrace:
    """Decodes stand in front of the prefill, as they were planned."""
    columns = zip(planned.slots, planned.rows, planned.starts, planned.counts, strict=True)
    return StepTrace(
        step=planned.step,
        rows=tuple(
            TracedRow(
                slot=slot,
                request=sequence.request,
                choice=sequence.choice,
                start=start,
                tokens=count,
                is_prefill=index >= planned.decode_rows,
            )
            for index, (slot, sequence, start, count) in enumerate(columns)
        ),
        retired=tuple(planned.retired),
        preempted=tuple((one.request, one.choice) for one in planned.preempted),
        running=running.count,
        waiting=waiting.choice_count,
        pages_free=running.pages.free,
        pages_cached=running.pages.cached,
        pages_used=running.pages.total - running.pages.available,
        hold=hold,
    )
