"""What a step computes: its rows and their tokens, and the run of steps in which the same slots decode on.

Must not know: models, messages' meaning, how slots are kept.

Nearly all steps of a server decode one token of each of the slots of the step before. A call of numpy costs some 5 µs there,
since the weights of each step push everything else out of the caches, so a run keeps its columns and moves them on in place.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.columns import pack_i8, pack_i32
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


def int32s(packed: bytes) -> Int32s:
    """A message's column; not to be changed."""
    return np.frombuffer(packed, np.int32)


@attrs.frozen(kw_only=True, eq=False)
class StepInputs:
    """All that a model is given of one step: rows that were checked, and their tokens, row after row without padding.

    Valid until the next step is applied: columns of a run are moved on, page tables change.
    """

    slots: Int64s
    """[rows]; also the row of `page_tables`."""
    starts: Int64s
    """[rows]: position of the row's first token."""
    counts: Int64s
    """[rows]: its tokens."""
    ends: Int64s
    """[rows], `starts + counts`: the tokens that the row attends to at its last position."""
    sampled: Int64s
    """Indices of the rows that sample, ascending."""
    sampled_slots: Int64s
    sampled_ends: Int64s
    """Slots and ends of these rows; the same arrays as those of all rows where all sample."""
    logit_places: Int64s
    """Of each sampled row, the place of its last token among all tokens of the step: where logits are wanted."""
    token_ids: Int64s
    """[tokens]; filled in by whoever has the values. A step that continues has the tokens that the one before sampled."""
    positions: Int64s
    """[tokens]"""
    cells: Int64s
    """[tokens]: where each token's state lives, `page id * page size + offset in the page`."""
    page_tables: Int32s
    """[slots, pages]: page ids of all slots; what follows the pages that a slot has means nothing, but is some page."""
    is_decode: bool
    """Each row is one token and samples."""
    continues: bool = False
    """Each row is the same row of the step before, one token further, and all of them sample; the arrays are the same too."""


@attrs.define(kw_only=True, eq=False)
class DecodeRun:
    """Steps in which the same slots decode a token each."""

    inputs: StepInputs
    """Of the last step, and of the next one after `advance`."""
    steps_in_pages: int
    """So many more steps stay within the pages, and the context, of the last one."""
    _slots: bytes
    _starts: bytes
    _counts: bytes
    _samples: bytes
    has_sampled: bool = False
    """Each slot has the token that the next step computes."""

    @classmethod
    def begin(cls, inputs: StepInputs, steps_in_pages: int) -> "DecodeRun":
        """After a step of which `is_decode` is true; takes its arrays over, of which the starts are the positions."""
        return cls(
            inputs=attrs.evolve(inputs, continues=True),
            steps_in_pages=steps_in_pages,
            slots=inputs.slots.astype(np.int32).tobytes(),
            starts=pack_i32([GO_ON] * inputs.slots.size),
            counts=pack_i32([1] * inputs.slots.size),
            samples=pack_i8([1] * inputs.slots.size),
        )

    def goes_on(self, step: ExecuteStep) -> bool:
        """Whether the rows of `step` are the next ones. What changed the slots in between is for the caller to see."""
        return (
            self.has_sampled
            and step.slots == self._slots
            and step.counts == self._counts
            and step.samples == self._samples
            and step.starts == self._starts
        )

    def advance(self) -> None:
        """Moves rows and tokens on by one token; where that leaves the pages, the cells are the caller's to set."""
        for column in (self.inputs.starts, self.inputs.ends, self.inputs.cells):
            np.add(column, 1, out=column)
        self.steps_in_pages -= 1
        self.has_sampled = False
