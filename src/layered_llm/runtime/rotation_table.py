"""Cosines and sines of the rotary embedding by position, for as many positions as were needed so far.

Must not know: steps, kernels.
"""

from typing import Final

import torch

from layered_llm.runtime.layers import RotaryEmbedding
from layered_llm.runtime.matrices import Float32s
from layered_llm.runtime.model_config import ModelConfig

_FIRST_POSITIONS: Final = 1024


class RotationTable:
    """Grows by doubling, so that a model's longest context costs nothing until it is used."""

    def __init__(self, config: ModelConfig) -> None:
        self._rotary = RotaryEmbedding.build(config.rope, config.head_dim)
        self._half = config.head_dim // 2
        self._cosines, self._sines = self._computed(_FIRST_POSITIONS)

    def covering(self, positions: int) -> tuple[Float32s, Float32s]:
        """Cosines and sines, fp32 [at least `positions`, head_dim / 2]; what earlier calls gave may be freed."""
        held = len(self._cosines)
        if positions > held:
            self._cosines, self._sines = self._computed(max(positions, 2 * held))
        return self._cosines, self._sines

    def _computed(self, positions: int) -> tuple[Float32s, Float32s]:
        rotation = self._rotary.rotation(torch.arange(positions))
        return (rotation.cos[:, 0, : self._half].contiguous().numpy(), rotation.sin[:, 0, : self._half].contiguous().numpy())
