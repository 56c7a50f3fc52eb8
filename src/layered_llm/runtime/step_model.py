"""What executes the layers of a step, as the device sees it.

Must not know: how it is computed, sampling.
"""

from typing import Protocol

from layered_llm.runtime.matrices import Float32s
from layered_llm.runtime.slots import SlotTable
from layered_llm.runtime.step_rows import FlatTokens, StepRows


class StepModel(Protocol):
    """A decoder with its KV cache."""

    def hidden(self, slots: SlotTable, rows: StepRows, tokens: FlatTokens) -> Float32s:
        """Runs all tokens of a step, storing their keys and values: fp32 [tokens, hidden], not yet normalised.

        The next call of any method may overwrite what this one returned.
        """

    def logits(self, hidden: Float32s) -> Float32s:
        """Fp32 [tokens, vocabulary], for the rows of `hidden` that are worth it: the head is a small model's largest matrix.

        The caller may change them, and the next call may.
        """

    def sampled_logits(self, slots: SlotTable, rows: StepRows, tokens: FlatTokens) -> Float32s:
        """What `hidden` and then `logits` give for the last tokens of the rows that sample, in one go: [rows, vocabulary]."""
