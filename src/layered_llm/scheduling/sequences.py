"""The records of an open request: its choices, its tenant, and the text worker that speaks for it.

Must not know: how a step is planned, which pages are free.

Invariants: a choice is in one phase; it never comes back from ENDED. `computed_tokens <= planned_tokens`, and the difference
is what the steps in flight compute of it. Only computed tokens are in pages that others may share. A request's record exists
as long as one of its choices has not ended.
"""

import enum
from array import array
from collections import deque
from typing import Final

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import PageId, RequestId, SlotId, StepId, TextId
from layered_llm.domain.messages.logprobs import LogprobColumns
from layered_llm.domain.messages.text_scheduler import Admit
from layered_llm.domain.placement import CacheRoot
from layered_llm.scheduling.pages import NO_STEP
from layered_llm.scheduling.prefix_tree import Node

PROMPT_TOKEN_COST: Final = 1
OUTPUT_TOKEN_COST: Final = 2
"""The paper's weights, and about what such tokens are sold for: an output token takes a step, a prompt's share one."""


@enum.unique
class Phase(enum.Enum):
    """How far a choice is. What is planned counts: DECODING begins when the last chunk of the prompt is planned.

    A preempted choice is WAITING again, and what is known of its output is prefilled after its prompt.
    """

    WAITING = enum.auto()
    PREFILLING = enum.auto()
    DECODING = enum.auto()
    ENDED = enum.auto()


@attrs.define(eq=False)
class Tenant:
    """One tenant; an object, so that charging each token of a step looks nothing up."""

    name: str
    open_requests: int = 0
    served: int = 0
    """Cost of what it was given, to be compared with other tenants' only."""


@attrs.define(eq=False)
class TextWorker:
    """A text worker and its credit: how many TokensEmitted it has not yet worked off."""

    worker: TextId
    _max_unacknowledged_steps: int
    aborts_taken: int = attrs.field(init=False, default=0)
    """Aborts that came from it."""
    has_credit: bool = attrs.field(init=False, default=True)
    """Without credit no choice of the worker is planned or started. Kept up to date here, as every row asks for it."""
    _unacknowledged: deque[StepId] = attrs.field(init=False, factory=deque)
    _last_emitted: StepId = attrs.field(init=False, default=NO_STEP)

    def emitted(self, step: StepId) -> None:
        self._last_emitted = step
        self._unacknowledged.append(step)
        self.has_credit = len(self._unacknowledged) < self._max_unacknowledged_steps

    def taken(self, step: StepId) -> None:
        """Everything up to and with `step` is worked off. Raises InvariantViolated for a step that was never sent."""
        if step > self._last_emitted:
            raise InvariantViolated(f"text worker {self.worker} took step {step}, the last one sent is {self._last_emitted}")
        while self._unacknowledged and self._unacknowledged[0] <= step:
            self._unacknowledged.popleft()
        self.has_credit = len(self._unacknowledged) < self._max_unacknowledged_steps


@attrs.define(eq=False, kw_only=True)
class Sequence:
    """One choice of one request. Tokens count from the start of the prompt; the output follows it."""

    admit: Admit
    request: RequestId
    choice: int
    worker: TextWorker
    tenant: Tenant
    arrival: int
    """Place in the order of all choices that ever came: what first come, first served goes by."""
    prompt_tokens: int
    plan_limit_tokens: int
    """Where planning ends: the last sampled token is never fed back."""
    end_ids: frozenset[int]
    cache_root: CacheRoot
    tokens: "array[int]"
    """Prompt and output so far."""

    phase: Phase = Phase.WAITING
    slot: SlotId | None = None
    pages: list[PageId] = attrs.field(factory=list)
    place: Node | None = None
    """Where in the prefix tree the choice's shared pages end, and what it holds a lock on while it runs."""
    shared_pages: int = 0
    """Pages at the front of `pages` that are the tree's; the others are the choice's own."""
    prefill_tokens: int = 0
    """Where its prefill ends: what was known of it when it started."""
    planned_tokens: int = 0
    """Tokens whose keys and values a planned step computes, or that were found."""
    paged_tokens: int = 0
    """What `planned_tokens` was at most before a row yielded less than planned: pages for so many are kept."""
    computed_tokens: int = 0
    """The part of `planned_tokens` that needs no step in flight."""
    output_tokens: int = 0
    """Sampled tokens that came back and were shown."""
    prompt_logprobs: list[LogprobColumns] = attrs.field(factory=list)
    """Of its prompt, from the rows of its prefill, kept until the first token is shown."""
    cached_tokens: int | None = None
    """Tokens that were found when it started for the first time."""
    last_step: StepId = NO_STEP
    """Last step that names the slot and its pages; NO_STEP while a running choice's slot is not open in the runtime."""
    counted_tokens: int = 0
    """Where the part of the prompt ends that counts as computed once, however often a preemption has it computed."""

    @property
    def reads_cache(self) -> bool:
        """Once a token was shown, so were the log probabilities of the prompt."""
        return self.admit.reads_cache or self.output_tokens > 0

    def take_prompt_logprobs(self) -> LogprobColumns | None:
        """The log probabilities of the prompt, once."""
        parts, self.prompt_logprobs = self.prompt_logprobs, []
        return LogprobColumns.joined(parts) if parts else None


@attrs.define(eq=False, kw_only=True)
class Request:
    """An accepted request; gone from the scheduler when `open_choices` is 0."""

    worker: TextWorker
    sequences: tuple[Sequence, ...]
    sharable_pages: int
    """Pages that only the prompt fills, and of which a choice that starts with all of them has a token left to compute."""
    queued_us: int
    """When it came."""
    open_choices: int
    started_us: int | None = attrs.field(init=False, default=None)
    """When the first step that computes some of it was planned."""
    has_output: bool = attrs.field(init=False, default=False)
    preemptions: int = attrs.field(init=False, default=0)
    """Of all of its choices."""
    leader: Sequence | None = attrs.field(init=False, default=None)
    """The choice that started last: it computes of the prompt what was not found."""

    @property
    def is_prompt_under_way(self) -> bool:
        """A choice computes pages that the others will find, if they wait for it."""
        leader = self.leader
        return leader is not None and leader.slot is not None and leader.shared_pages < self.sharable_pages
