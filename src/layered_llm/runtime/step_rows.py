"""What a step computes: its rows and their tokens, and the run of steps in which the same slots decode on.

Must not know: tensors, models, messages' meaning, what a slot's state is.

Nearly all steps of a server decode one token of each of the slots of the step before. A call of numpy costs some 5 µs there,
since the weights of each step push everything else out of the caches, so a run keeps its columns and moves them on in place.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.columns import pack_i8, pack_i32
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


@attrs.frozen(kw_only=True, eq=False)
class StepRows:
    """The rows of one step, checked against the slots' state. All columns have one entry for each row.

    Valid until the next step is applied: those of a run are moved on.
    """

    slots: Int64s
    starts: Int64s
    counts: Int64s
    ends: Int64s
    """`starts + counts`: the tokens that the row attends to at its last position."""
    sampled: Int64s
    """Indices of the rows that sample, ascending."""
    last_tokens: Int64s
    """Of each sampled row, the place of its last token among all tokens of the step."""
    continues: bool = False
    """Each row is the same row of the step before, one token further, and all of them sample."""

    @property
    def all_decode(self) -> bool:
        """Each row is one token and samples."""
        return 0 < self.slots.size == self.sampled.size and int(self.counts.max()) == 1

    @property
    def sampled_slots(self) -> Int64s:
        return self.slots if self.sampled.size == self.slots.size else self.slots[self.sampled]

    @property
    def sampled_ends(self) -> Int64s:
        return self.ends if self.sampled.size == self.slots.size else self.ends[self.sampled]


@attrs.frozen(kw_only=True, eq=False)
class FlatTokens:
    """The tokens of a step one behind the other, row after row, without padding. Valid as long as their rows."""

    token_ids: Int64s
    positions: Int64s
    cells: Int64s
    """Where each token's state lives: `page id * page size + offset in the page`."""


@attrs.define(kw_only=True, eq=False)
class DecodeRun:
    """Steps in which the same slots decode a token each."""

    rows: StepRows
    """Of the last step, and of the next one behind `advance`."""
    tokens: FlatTokens
    steps_in_pages: int
    """So many more steps stay within the pages, and the context, of the last one."""
    _slots: bytes
    _counts: bytes
    _samples: bytes
    _is_fed: bool = False

    @classmethod
    def begin(cls, rows: StepRows, tokens: FlatTokens, steps_in_pages: int) -> "DecodeRun":
        """Behind a step of which `all_decode` is true; takes its arrays over, of which the starts are the positions."""
        return cls(
            rows=attrs.evolve(rows, continues=True),
            tokens=tokens,
            steps_in_pages=steps_in_pages,
            slots=rows.slots.astype(np.int32).tobytes(),
            counts=pack_i32([1] * rows.slots.size),
            samples=pack_i8([1] * rows.slots.size),
        )

    def feed(self, token_ids: Int32s) -> None:
        """The tokens that the last step sampled, which the next one computes."""
        self.tokens.token_ids[:] = token_ids
        self._is_fed = True

    def goes_on(self, step: ExecuteStep) -> bool:
        """Whether the rows of `step` are the next ones. What changed the slots in between is for the caller to see."""
        return (
            self._is_fed
            and step.slots == self._slots
            and step.counts == self._counts
            and step.samples == self._samples
            and step.starts == self.rows.ends.astype(np.int32).tobytes()
        )

    def advance(self) -> None:
        """Moves rows and tokens on by one token; where that leaves the pages, the cells are the caller's to set."""
        for column in (self.rows.starts, self.rows.ends, self.tokens.cells):
            np.add(column, 1, out=column)
        self.steps_in_pages -= 1
        self._is_fed = False
