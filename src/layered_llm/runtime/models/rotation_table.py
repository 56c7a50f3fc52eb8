"""Cosines and sines of the rotary embedding (Su et al., RoFormer, 2021) for as many positions as were needed so far.

Must not know: steps, kernels, torch.

Frequencies and angles are computed in fp64, and each cosine and sine is rounded to fp32 once: both ways to execute a model read
these tables, so that they rotate by the same numbers.
"""

import math
from typing import Final, assert_never

import numpy as np
from numpy.typing import NDArray

from layered_llm.runtime.device.step_inputs import Float32s
from layered_llm.runtime.models.model_config import FrequencyFactors, LinearScaling, Llama3Scaling, RopeConfig, RopeScaling

Float64s = NDArray[np.float64]

_FIRST_POSITIONS: Final = 1024


class RotationTable:
    """Grows by doubling, so that a model's longest context costs nothing until it is used."""

    def __init__(self, rope: RopeConfig, head_dim: int) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim)
        self._cosines, self._sines = self._computed(_FIRST_POSITIONS)

    def covering(self, positions: int) -> tuple[Float32s, Float32s]:
        """Cosines and sines, fp32 [at least `positions`, head_dim / 2]; what earlier calls gave may be freed."""
        held = len(self._cosines)
        if positions > held:
            self._cosines, self._sines = self._computed(max(positions, 2 * held))
        return self._cosines, self._sines

    def _computed(self, positions: int) -> tuple[Float32s, Float32s]:
        angles = np.arange(positions, dtype=np.float64)[:, None] * self._frequencies
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Float64s:
    """By how much a position turns each pair of numbers: radians, fp64 [head_dim / 2]."""
    frequencies = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    return frequencies if rope.scaling is None else _stretched(frequencies, rope.scaling)


def _stretched(frequencies: Float64s, scaling: RopeScaling) -> Float64s:
    match scaling:
        case Llama3Scaling():
            return _stretched_by_wavelength(frequencies, scaling)
        case LinearScaling(factor=factor):
            return frequencies / factor
        case FrequencyFactors(factors=factors):
            return frequencies / np.array(factors, np.float64)
        case _:
            assert_never(scaling)


def _stretched_by_wavelength(frequencies: Float64s, scaling: Llama3Scaling) -> Float64s:
    """Long wavelengths grow by `factor`, short ones stay, and those between are interpolated."""
    turns = scaling.original_context_tokens * frequencies / (2 * math.pi)
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = share.clip(0.0, 1.0)
    return (1 - share) * frequencies / scaling.factor + share * frequencies
