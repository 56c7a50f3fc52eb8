"""What a device is composed of beside its slots: what computes a step's layers, and what samples from their result.

Must not know: how either is done.
"""

from collections.abc import Callable
from typing import Final, Protocol

import attrs
import numpy as np

from layered_llm.domain.messages.logprobs import LogprobColumns, PromptLogprobs
from layered_llm.runtime.device.step_inputs import Float32s, Int32s, StepInputs


class StepModel(Protocol):
    """A decoder with its KV cache."""

    def hidden(self, inputs: StepInputs) -> Float32s:
        """Runs all tokens of a step, storing their keys and values: fp32 [tokens, hidden], not yet normalised.

        The next call of any method may overwrite what this one returned.
        """

    def logits(self, hidden: Float32s) -> Float32s:
        """Fp32 [tokens, vocabulary], for the rows of `hidden` that are worth it: the head is a small model's largest matrix.

        The caller may change them, and the next call may.
        """

    def sampled_logits(self, inputs: StepInputs) -> Float32s:
        """What `hidden` and then `logits` give for the tokens at `logit_places`, in one go: [rows, vocabulary]."""


@attrs.frozen(kw_only=True, eq=False)
class Sampled:
    """What the rows of a step sampled."""

    token_ids: Int32s
    """One for each sampling row, 0 for one that failed."""
    logprobs: LogprobColumns | None = None
    failed_rows: frozenset[int] = frozenset()
    """Rows of the step whose logits are not finite."""


NOTHING_SAMPLED: Final = Sampled(token_ids=np.empty(0, np.int32))


class Sampler(Protocol):
    """From the model's result to tokens, and to what is reported of them. It knows the slots' choices, and changes nothing."""

    def sample(self, logits: Float32s, inputs: StepInputs) -> Sampled:
        """A token for each row of `logits` [sampling rows, vocabulary], which may be changed in place."""

    def prompt_logprobs(
        self, hidden: Float32s, inputs: StepInputs, logits_of: Callable[[Float32s], Float32s]
    ) -> tuple[PromptLogprobs | None, frozenset[int]]:
        """What each row reports of its prompt: the tokens that follow those that it computes; and the rows that failed.

        `hidden` [tokens, hidden] is the model's of the whole step, and `logits_of` its `logits`.
        """
