"""The slot table: what each running choice is, as told by the deltas of the steps so far.

Must not know: tensors, models, how a token is sampled, what a page holds.

Shared by all devices. Everything is a column or a matrix of integers, so that the work per step grows with its rows, not
with a Python object for each token. Invariants of an open slot: computed tokens ≤ known tokens ≤ context + 1, and its page
table covers its computed tokens. A step that contradicts the state is our own fault: InvariantViolated, and the process ends.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, OpenSlot
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.seen_tokens import SeenTokens, seen_tokens
from layered_llm.runtime.step_rows import DecodeRun, FlatTokens, Int32s, Int64s, StepRows

_SURPLUS_TOKENS: Final = 1
"""With two steps in flight, a choice that ended in the first still samples in the second."""


class SlotTable:
    """State of all slots: tokens, page tables, counters, sampling parameters."""

    def __init__(self, limits: RuntimeLimits) -> None:
        self._limits = limits
        width = limits.context_tokens + _SURPLUS_TOKENS
        self._tokens: Int32s = np.zeros((limits.slots, width), np.int32)
        self._pages: Int32s = np.zeros((limits.slots, -(-width // limits.page_size_tokens)), np.int32)
        self._is_open: NDArray[np.bool_] = np.zeros(limits.slots, np.bool_)
        self._prompt_tokens: Int64s = np.zeros(limits.slots, np.int64)
        self._known_tokens: Int64s = np.zeros(limits.slots, np.int64)
        self._computed_tokens: Int64s = np.zeros(limits.slots, np.int64)
        self._start_limits: Int64s = np.zeros(limits.slots, np.int64)
        self._page_counts: Int64s = np.zeros(limits.slots, np.int64)
        self._choices: dict[int, tuple[int, TokenSampling]] = {}
        self._seen: dict[int, SeenTokens] = {}
        self._missing: dict[int, Int64s] = {}
        self._tells_prompt: set[int] = set()
        self._run: DecodeRun | None = None
        """Of the last step, if it only decoded and no slot was opened or retired since."""

    @property
    def open_count(self) -> int:
        return len(self._choices)

    def apply(self, step: ExecuteStep) -> StepRows:
        """Applies the step's deltas in their order, then checks its rows and counts their tokens as computed."""
        self._apply_deltas(step)
        if self._run is not None and self._run.goes_on(step):
            rows = self._advanced(self._run)
        else:
            self._run = None
            rows = self._checked_rows(step)
        self._computed_tokens[rows.slots] = rows.ends
        self._start_limits[rows.slots] = rows.ends
        return rows

    def flatten(self, rows: StepRows) -> FlatTokens:
        """The tokens that `rows`, which are those of the last step, compute, with their positions and cells."""
        if rows.continues and self._run is not None:
            return self._run.tokens
        slots, positions = rows.slots, rows.starts
        if rows.counts.max(initial=1) > 1:
            slots = np.repeat(rows.slots, rows.counts)
            firsts = np.cumsum(rows.counts) - rows.counts
            positions = np.arange(slots.size) + np.repeat(rows.starts - firsts, rows.counts)
        token_ids = self._tokens[slots, positions].astype(np.int64)
        cells, steps_in_pages = self._placed(slots, positions)
        tokens = FlatTokens(token_ids=token_ids, positions=positions, cells=cells)
        if rows.all_decode:
            self._run = DecodeRun.begin(rows, tokens, steps_in_pages)
        return tokens

    def append_sampled(self, rows: StepRows, token_ids: Int32s) -> None:
        """Adds the token that each sampling row of the last step sampled to its slot's output."""
        slots, known = rows.sampled_slots, rows.sampled_ends
        self._tokens[slots, known] = token_ids
        self._known_tokens[slots] = known + 1
        if self._run is not None:
            self._run.feed(token_ids)
        if self._tells_prompt:
            self._tells_prompt.difference_update(slots.tolist())
        if self._seen:
            for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
                if (seen := self._seen.get(slot)) is not None:
                    seen.add(token)

    def page_table(self, slot: int, tokens: int) -> Int32s:
        """Page ids that hold the slot's first `tokens` tokens; a view."""
        return self._pages[slot, : -(-tokens // self._limits.page_size_tokens)]

    def page_tables(self, slots: Int64s, pages: int) -> Int32s:
        """The first `pages` page ids of each of `slots`, [slots, pages]; ids behind a table's end belong to some page."""
        return self._pages[slots, :pages]

    def page_table_addresses(self, slots: Int64s) -> Int64s:
        """Where in memory the page ids (int32) of each of `slots` begin; valid as long as the table lives."""
        first: int = self._pages.__array_interface__["data"][0]
        return first + slots * self._pages.strides[0]

    def prompt_ids(self, slot: int) -> Int32s:
        """The slot's prompt; a view."""
        return self._tokens[slot, : self._prompt_tokens[slot]]

    def output_ids(self, slot: int) -> Int32s:
        """The slot's output so far; a view."""
        return self._tokens[slot, self._prompt_tokens[slot] : self._known_tokens[slot]]

    def prompt_tokens(self, slot: int) -> int:
        return int(self._prompt_tokens[slot])

    def output_tokens(self, slot: int) -> int:
        return int(self._known_tokens[slot] - self._prompt_tokens[slot])

    def choice(self, slot: int) -> int:
        """Index of the slot's choice in its request."""
        return self._choices[slot][0]

    def sampling(self, slot: int) -> TokenSampling:
        return self._choices[slot][1]

    def seen_tokens(self, slot: int) -> SeenTokens | None:
        """The slot's tokens so far, counted; None where no penalty needs it."""
        return self._seen.get(slot)

    def missing_ids(self, slot: int) -> Int64s | None:
        """Ids that the slot must never sample, since no token has them; None where there are none."""
        return self._missing.get(slot)

    @property
    def has_missing_ids(self) -> bool:
        """Whether `missing_ids` says any of any slot."""
        return bool(self._missing)

    @property
    def tells_prompts(self) -> bool:
        """Whether something is told of the prompt of any slot."""
        return bool(self._tells_prompt)

    def prompt_logprobs(self, slot: int) -> int | None:
        """How many of the likeliest tokens are told beside each prompt token; None where the prompt is not told, or was.

        It was with the row that sampled the first token.
        """
        return self._choices[slot][1].prompt_logprobs if slot in self._tells_prompt else None

    def _apply_deltas(self, step: ExecuteStep) -> None:
        if step.retired or step.opened:
            self._run = None
        for slot in _column(step.retired).tolist():
            self._retire(slot)
        for opening in step.opened:
            self._open(opening)
        if step.page_slots or step.page_ids:
            self._apply_page_deltas(step)
            if self._run is not None:
                self._run.steps_in_pages = 0

    def _advanced(self, run: DecodeRun) -> StepRows:
        """The next rows of a run. All that was true of the last ones is, but where they come to other pages, or to the end."""
        leaves_pages, rows = run.steps_in_pages <= 0, run.rows
        run.advance()
        if leaves_pages:
            room = np.minimum(self._page_counts[rows.slots] * self._limits.page_size_tokens, self._limits.context_tokens)
            if (rows.ends > room).any():
                self._check_rows(rows.slots, rows.starts, rows.ends, np.ones(rows.slots.size, np.bool_))
            run.tokens.cells[:], run.steps_in_pages = self._placed(rows.slots, rows.starts)
        return rows

    def _placed(self, slots: Int64s, positions: Int64s) -> tuple[Int64s, int]:
        """The cells of tokens, and how many more fit behind each of them, in its page and in the context."""
        page_size = np.int64(self._limits.page_size_tokens)
        pages, offsets = np.divmod(positions, page_size)
        page_left = int(page_size - 1 - offsets.max(initial=0))
        context_left = self._limits.context_tokens - 1 - int(positions.max(initial=0))
        return self._pages[slots, pages] * page_size + offsets, min(page_left, context_left)

    def _retire(self, slot: int) -> None:
        if self._choices.pop(slot, None) is None:
            raise InvariantViolated(f"slot {slot} is retired but not open")
        self._seen.pop(slot, None)
        self._missing.pop(slot, None)
        self._tells_prompt.discard(slot)
        self._is_open[slot] = False

    def _open(self, opening: OpenSlot) -> None:
        slot = int(opening.slot)
        if slot in self._choices or not 0 <= slot < self._limits.slots:
            raise InvariantViolated(f"slot {slot} is opened but already open or out of range")
        prompt, output = _column(opening.prompt_ids), _column(opening.output_ids)
        known = prompt.size + output.size
        if not prompt.size or known > self._limits.context_tokens:
            raise InvariantViolated(f"slot {slot} is opened with {prompt.size} prompt and {output.size} output tokens")
        self._check_vocabulary(slot, prompt)
        self._check_vocabulary(slot, output)
        for ids in (opening.sampling.biased_ids, opening.sampling.allowed_ids, *opening.sampling.bad_words):
            self._check_vocabulary(slot, _column(ids))
        self._tokens[slot, : prompt.size] = prompt
        self._tokens[slot, prompt.size : known] = output
        self._is_open[slot] = True
        self._prompt_tokens[slot] = prompt.size
        self._known_tokens[slot] = known
        self._computed_tokens[slot] = 0
        self._start_limits[slot] = known - 1
        self._page_counts[slot] = 0
        self._pages[slot] = 0
        self._choices[slot] = (opening.choice, opening.sampling)
        if (seen := seen_tokens(opening.sampling, prompt, output)) is not None:
            self._seen[slot] = seen
        if opening.sampling.missing_ranges:
            self._missing[slot] = self._expanded(slot, _column(opening.sampling.missing_ranges))
        if opening.sampling.prompt_logprobs is not None and not output.size:
            self._tells_prompt.add(slot)

    def _expanded(self, slot: int, ranges: Int32s) -> Int64s:
        firsts, ends = ranges[::2], ranges[1::2]
        self._check_vocabulary(slot, ranges[:1])
        self._check_vocabulary(slot, ends[-1:] - 1)
        if ranges.size % 2 or (np.diff(ranges) <= 0).any():
            raise InvariantViolated(f"slot {slot} is opened with ranges of missing ids that do not rise")
        return np.concatenate([np.arange(first, end) for first, end in zip(firsts, ends, strict=True)])

    def _check_vocabulary(self, slot: int, token_ids: Int32s) -> None:
        if token_ids.size and not (token_ids.min() >= 0 and token_ids.max() < self._limits.vocabulary_size):
            raise InvariantViolated(f"slot {slot} is opened with a token outside the vocabulary")

    def _apply_page_deltas(self, step: ExecuteStep) -> None:
        counts = _column(step.page_counts)
        page_ids = _column(step.page_ids)
        if (counts < 0).any() or int(counts.sum()) != page_ids.size:
            raise InvariantViolated(f"page deltas count {counts.tolist()} ids but carry {page_ids.size}")
        if page_ids.size and not (page_ids.min() >= 0 and page_ids.max() < self._limits.pages):
            raise InvariantViolated(f"a page id is outside 0 … {self._limits.pages - 1}: {page_ids.tolist()}")
        taken = 0
        deltas = zip(_column(step.page_slots).tolist(), counts.tolist(), _column(step.page_offsets).tolist(), strict=True)
        for slot, count, offset in deltas:
            self._set_pages(slot, offset, page_ids[taken : taken + count])
            taken += count

    def _set_pages(self, slot: int, offset: int, page_ids: Int32s) -> None:
        if slot not in self._choices:
            raise InvariantViolated(f"pages are given to slot {slot}, which is not open")
        length, end = int(self._page_counts[slot]), offset + page_ids.size
        if not 0 <= offset <= length or end > self._pages.shape[1]:
            raise InvariantViolated(f"slot {slot}: pages {offset} … {end - 1} do not fit a table of {length}")
        self._pages[slot, offset:end] = page_ids
        if offset < length:
            replaced_tokens = end * self._limits.page_size_tokens
            self._start_limits[slot] = max(int(self._start_limits[slot]), replaced_tokens)
        self._page_counts[slot] = max(length, end)

    def _checked_rows(self, step: ExecuteStep) -> StepRows:
        slots, starts = _column(step.slots).astype(np.int64), _column(step.starts).astype(np.int64)
        counts, samples = _column(step.counts).astype(np.int64), np.frombuffer(step.samples, np.int8)
        if slots.size and not (slots.min() >= 0 and slots.max() < self._limits.slots and self._is_open[slots].all()):
            raise InvariantViolated(f"a row names a slot that is not open: {slots.tolist()}")
        if len(set(slots.tolist())) != slots.size:
            raise InvariantViolated(f"a slot has two rows in one step: {slots.tolist()}")
        ends = starts + counts
        self._check_rows(slots, starts, ends, samples != 0)
        sampled = np.flatnonzero(samples)
        last_tokens = (np.cumsum(counts) - 1)[sampled]
        return StepRows(slots=slots, starts=starts, counts=counts, ends=ends, sampled=sampled, last_tokens=last_tokens)

    def _check_rows(self, slots: Int64s, starts: Int64s, ends: Int64s, samples: NDArray[np.bool_]) -> None:
        known = self._known_tokens[slots]
        faults = (
            ("has no tokens", ends <= starts),
            ("does not start where its computed tokens end", self._is_gap(slots, starts)),
            ("goes beyond its known tokens", ends > known),
            ("goes beyond the context", ends > self._limits.context_tokens),
            ("goes beyond its page table", ends > self._page_counts[slots] * self._limits.page_size_tokens),
            ("samples before its last known token", samples & (ends != known)),
        )
        for fault, is_faulty in faults:
            if is_faulty.any():
                raise InvariantViolated(self._describe(fault, int(is_faulty.argmax()), slots, starts, ends))

    def _is_gap(self, slots: Int64s, starts: Int64s) -> NDArray[np.bool_]:
        """A row continues its slot; the first one, and one behind replaced pages, may skip what the pages already hold."""
        return (starts < self._computed_tokens[slots]) | (starts > self._start_limits[slots])

    def _describe(self, fault: str, row: int, slots: Int64s, starts: Int64s, ends: Int64s) -> str:
        slot = int(slots[row])
        return (
            f"the row of slot {slot}, tokens {starts[row]} … {ends[row] - 1}, {fault}: {self._known_tokens[slot]} tokens are "
            f"known, {self._computed_tokens[slot]} computed, {self._page_counts[slot]} pages of "
            f"{self._limits.page_size_tokens} held"
        )


def _column(packed: bytes) -> Int32s:
    return np.frombuffer(packed, np.int32)
