"""Reads 32 weights of a row, or of a few rows, or a vector of them, of any format as fp32 vectors.

Must not know: what is computed with them.

The numbers are exactly those of `WeightMatrix.dequantized`: a product of an fp16 scale and a code of at most 8 bits is an fp32
number, so that only the sum of Q4_1 rounds, once in both. Formats with blocks lie in panels (`runtime.checkpoint.panels`).
"""

from collections.abc import Callable
from typing import Any, Final, assert_never

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.checkpoint.matrices import WeightFormat
from layered_llm.runtime.checkpoint.panels import PANEL_ROWS, SCALE_BYTES, has_panels, scales_of
from layered_llm.runtime.cpu.simd.kernels.emitter import I32, Int
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, Vector, Vectors

UNIT_COLUMNS: Final = 32
"""Weights of a row that are read together: a block of the quantized formats."""
MAX_BLOCK_COLUMNS: Final = 1536
"""Columns that are read in one go: a task's rows of them, in fp32, are 196 KB, which stay in a second cache."""
_CODES: Final = 16
"""That 4 bits can tell apart."""
_NIBBLE_BITS: Final = 4


@attrs.frozen(eq=False)
class PanelUnits:
    """The units of a panel, at most `MAX_BLOCK_COLUMNS`."""

    _weight_format: WeightFormat
    _address: Int
    _scales: Int
    """Room for the scales of all units as fp32: from memory, a number is in all lanes at once."""

    @classmethod
    def of(cls, v: Vectors, weight_format: WeightFormat, address: Int) -> "PanelUnits":
        most = MAX_BLOCK_COLUMNS // UNIT_COLUMNS
        return cls(weight_format, address, v.emitter.stack_bytes(most * _scale_count(weight_format) * F32_BYTES))

    def at(self, unit: Int) -> Int:
        """Where the unit begins."""
        return self._address + unit * unit_bytes(self._weight_format)

    def read(self, v: Vectors, unit: Int, first: Int, rows: int) -> list[list[Vector]]:
        """The 32 weights of each of the `rows` rows of the panel from `first` on."""
        weight_format, count = self._weight_format, _scale_count(self._weight_format)
        scales = self._scales + unit * (count * F32_BYTES)
        v.widen(self.at(unit), scales, count)
        at = [scales + (first + row) * F32_BYTES for row in range(rows)]
        codes = self.at(unit) + count * SCALE_BYTES
        match weight_format:
            case WeightFormat.Q8_0:
                return [_scaled_bytes(v, codes + (first + row) * UNIT_COLUMNS, at[row]) for row in range(rows)]
            case WeightFormat.Q4_0:
                return _coded(v, codes, first, [_without_lowest(v, each) for each in at])
            case WeightFormat.Q4_1:
                return _coded(v, codes, first, [_with_lowest(v, each) for each in at])
            case _:
                raise InvariantViolated(f"{weight_format.label} has no panels")


def _scale_count(weight_format: WeightFormat) -> int:
    """Of a unit."""
    return PANEL_ROWS * scales_of(weight_format)


def unit_bytes(weight_format: WeightFormat) -> int:
    """From a unit to the next: of a panel where the format has blocks, else of a row."""
    return (PANEL_ROWS if has_panels(weight_format) else 1) * weight_format.row_bytes(UNIT_COLUMNS)


def read_lanes(v: Vectors, weight_format: WeightFormat, address: Int) -> Vector:
    """A vector of the weights at `address`, of a format without blocks."""
    match weight_format:
        case WeightFormat.F32:
            return v.load(address)
        case WeightFormat.BF16:
            return v.load_bfloats(address)
        case WeightFormat.F16:
            return v.load_halfs(address)
        case WeightFormat.Q8_0 | WeightFormat.Q4_0 | WeightFormat.Q4_1:
            raise InvariantViolated(f"{weight_format.label} has blocks")
        case _:
            assert_never(weight_format)


_WeightOf = Callable[[Vector], Vector]
"""From codes to weights."""


def _without_lowest(v: Vectors, scales: Int) -> _WeightOf:
    scale = v.splat_beside_shuffles(scales)
    return lambda code: (code - v.constant(8.0)) * scale


def _with_lowest(v: Vectors, scales: Int) -> _WeightOf:
    scale, lowest = v.splat_beside_shuffles(scales), v.splat_beside_shuffles(scales + PANEL_ROWS * F32_BYTES)
    return lambda code: v.fma(code, scale, lowest)


def _scaled_bytes(v: Vectors, address: Int, scales: Int) -> list[Vector]:
    scale = v.splat_beside_shuffles(scales)
    parts = (v.load_bytes(address + v.lanes * part) for part in range(UNIT_COLUMNS // v.lanes))
    return [v.of_integers(v.builder.sext(part, v.lanes_of(I32))) * scale for part in parts]


def _coded(v: Vectors, address: Int, first: Int, weights_of: list[_WeightOf]) -> list[list[Vector]]:
    """For each row from `first` on, the weights of the low nibbles of its 16 bytes, then those of the high ones.

    Where a vector holds a weight for every code, they are looked up in it.
    """
    words = [v.load_words(address + part) for part in range(0, _CODES * F32_BYTES, v.vector_bytes)]
    start = v.spread_int32(first * (2 * _NIBBLE_BITS))
    rows = []
    for row, weight_of in enumerate(weights_of):
        bits = [v.builder.add(start, v.same(I32, (2 * row + nibble) * _NIBBLE_BITS)) for nibble in range(2)]
        codes = [v.builder.lshr(word, each) for each in bits for word in words]
        rows.append(_looked_up(v, codes, weight_of) if v.lanes == _CODES else _computed(v, codes, weight_of))
    return rows


def _looked_up(v: Vectors, codes: list[Any], weight_of: _WeightOf) -> list[Vector]:
    weights = weight_of(v.lane_numbers())
    return [v.looked_up(weights, each) for each in codes]


def _computed(v: Vectors, codes: list[Any], weight_of: _WeightOf) -> list[Vector]:
    return [weight_of(v.of_integers(v.builder.and_(each, v.same(I32, _CODES - 1)))) for each in codes]
