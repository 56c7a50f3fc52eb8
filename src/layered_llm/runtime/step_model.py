"""What executes the layers of a step, as the device sees it.

Must not know: how it is computed, sampling.
"""

from typing import Protocol

import torch

from layered_llm.runtime.slots import FlatTokens, SlotTable, StepRows


class StepModel(Protocol):
    """A decoder with its KV cache."""

    def hidden(self, slots: SlotTable, rows: StepRows, tokens: FlatTokens) -> torch.Tensor:
        """Runs all tokens of a step, storing their keys and values: fp32 [tokens, hidden], not yet normalised.

        The next call of either method may overwrite what this one returned.
        """

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Fp32 [tokens, vocabulary], for the rows of `hidden` that are worth it: the head is a small model's largest matrix.

        The caller may change them, and the next call may.
        """
