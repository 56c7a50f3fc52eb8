"""Linear layers for the CPU, with weights in the order in which oneDNN's kernels read them.

Must not know: models, checkpoints, steps.

Reordered once at load, a matrix is read two to three times as fast as through `torch.nn.functional.linear`, at 1 to 32
tokens, and as fast at hundreds. The operators are those that torch's own compiler emits for frozen weights; where torch is
built without oneDNN the plain function does the work. Both compute in fp32.
"""

from typing import Final

import attrs
import torch
from torch.nn.functional import linear

_EXPECTED_TOKENS: Final = 8
"""The order is chosen for about so many tokens in a step; others are only a little slower for it."""


@attrs.frozen(eq=False)
class Linear:
    """x W^T + b for x [tokens, inputs]."""

    _weight: torch.Tensor
    """[outputs, inputs], opaque where it is packed."""
    _bias: torch.Tensor | None
    _is_packed: bool

    @classmethod
    def build(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> "Linear":
        """Packs `weight` [outputs, inputs] into memory of its own."""
        if not torch.backends.mkldnn.is_available():
            return cls(weight, bias, False)
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight, _EXPECTED_TOKENS), bias, True)  # noqa: SLF001 - an operator

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self._is_packed:
            return linear(x, self._weight, self._bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")  # noqa: SLF001 - an operator
