"""The link between the scheduler and the ranks of the runtime.

Must not know: requests, clients, policy, tensors.

The scheduler speaks in slots. A slot is opened once with everything about its choice; later steps carry only what changed.
Every rank is sent every step. Steps are executed in order, and answered in order by one rank; the others only say that they
are ready, or that they have failed.
"""

from typing import Final

import attrs

from layered_llm.domain.columns import Columnar, column, rows, unpack_i32
from layered_llm.domain.ids import SlotId, StepId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.logprobs import LogprobColumns, PromptLogprobs, check_rows
from layered_llm.domain.messages.text_scheduler import TokenSampling

ANSWERING_RANK: Final = 0
GO_ON: Final = -1
"""In place of a row's start: the slot decodes on from where the runtime has it."""


@attrs.frozen(kw_only=True)
class OpenSlot(Columnar):
    """A choice that runs for the first time since it was (re-)admitted.

    `prompt_ids` and `output_ids` stay apart: penalties, minimum and maximum lengths depend on the boundary.
    """

    slot: SlotId
    choice: int
    prompt_ids: bytes = column("i")
    output_ids: bytes = column("i")
    sampling: TokenSampling


@attrs.frozen(kw_only=True)
class ExecuteStep(Columnar):
    """One forward pass over rows of mixed prefill and decode, and the changes of state that come before it.

    Applied in this order: `retired`, `opened`, the page table deltas, then the rows.
    Row r computes tokens `starts[r] … starts[r] + counts[r] - 1` of its slot (prompt, then output) and, where `samples[r]`
    is 1, samples the token after them. Where `starts[r]` is GO_ON the slot's prefill is complete: the runtime goes on with the
    slot's last token, wherever that is by now, and yields `counts[r]` tokens at most, for which the slot has pages, and none
    after an end id: numbers that are not finite there fail no request.
    The runtime appends what it samples to the slot's output by itself: it is never sent back. A row that yields no token leaves
    its slot at its last token. A step without rows only changes state and is answered like any other.
    """

    step: StepId
    retired: bytes = column("i")
    """Slots whose state is dropped."""
    opened: tuple[OpenSlot, ...]

    page_slots: bytes = column("i", "pages")
    page_counts: bytes = column("i", "pages")
    page_offsets: bytes = column("i", "pages")
    """Index in the slot's page table where the new ids go: its length appends, less replaces (a prefix found in the cache)."""
    page_ids: bytes = column("i")
    """`page_counts[k]` ids for each row k of the page table deltas, row after row."""
    page_groups: bytes = column("b", default=b"")
    """The page group whose table each row k changes; empty where all are of group 0."""

    slots: bytes = column("i", "rows")
    starts: bytes = column("i", "rows")
    counts: bytes = column("i", "rows")
    samples: bytes = column("b", "rows")

    @property
    def row_count(self) -> int:
        return rows("i", self.slots)


@attrs.frozen(kw_only=True)
class RuntimeWarmingUp:
    """The runtime is alive and not ready yet: it reads a model, or compiles for it. Sent every few seconds of a long start."""


@attrs.frozen(kw_only=True)
class RuntimeReady:
    """Sent once, when the weights are loaded and the KV pool exists."""

    limits: RuntimeLimits
    pid: int


@attrs.frozen(kw_only=True)
class StepCompleted(Columnar):
    """The result of one step."""

    step: StepId
    token_ids: bytes = column("i")
    """The sampled tokens of each row with `samples` set, in row order."""
    token_counts: bytes = column("i", default=b"")
    """How many tokens each of these rows yields; empty where it is one each. Those of a row that failed mean nothing."""
    device_us: int
    """Time the step took on the device."""
    open_slots: int
    """Slots that hold state after the step: what a leak in the runtime would show in."""
    logprobs: LogprobColumns | None = None
    """Of each of `token_ids`; None where no row wants any."""
    prompt_logprobs: PromptLogprobs | None = None
    """Of the prompt tokens that the step's rows are the first to tell, a row for each of the step's; None where there are none.

    A row tells those that follow the tokens that it computes, and the first of the prompt with the row that computes it.
    """

    failed_rows: bytes = column("i", "failures", default=b"")
    """Rows of the step, ascending, that have no result; what else is said of them means nothing. Nearly always none."""
    failures: bytes = column("b", "failures", default=b"")
    """Why each of `failed_rows` has none: the FinishReason that its choice ends with."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.logprobs is not None:
            check_rows(self.logprobs, self.token_ids)
        if self.token_counts:
            counts = unpack_i32(self.token_counts)
            if min(counts) < 0 or sum(counts) != rows("i", self.token_ids):
                raise ValueError(f"{rows('i', self.token_ids)} tokens for counts that add up to {sum(counts)}")


@attrs.frozen(kw_only=True)
class StepFailed:
    """The runtime could not execute the step and is in no state to go on; its process ends after this word."""

    step: StepId
    message: str


SchedulerToRuntime = ExecuteStep
RuntimeToScheduler = RuntimeWarmingUp | RuntimeReady | StepCompleted | StepFailed
