"""Reads panels that have a row for each lane of a vector, as they lie for products of bytes.

Must not know: what is computed with the weights, activations.
"""

from typing import Any, Final

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.checkpoint.matrices import WeightFormat
from layered_llm.runtime.checkpoint.panels import CODE_WORD_BYTES, SCALE_BYTES, is_nibbles, scales_of
from layered_llm.runtime.cpu.simd.kernels.emitter import Int
from layered_llm.runtime.cpu.simd.kernels.integers import Integers
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, Vector, Vectors
from layered_llm.runtime.cpu.simd.kernels.weight_units import UNIT_COLUMNS

CODE_WORDS: Final = UNIT_COLUMNS // CODE_WORD_BYTES
"""Vectors of a unit's codes, in each lane 4 neighbouring ones of its row."""
_HALF_COLUMNS: Final = UNIT_COLUMNS // 2
_BYTE_BITS: Final = 8
_NIBBLE_BITS: Final = 4


def middle_code(weight_format: WeightFormat) -> int:
    """The unsigned code from which the others are as far below as above."""
    match weight_format:
        case WeightFormat.Q8_0:
            return 128
        case WeightFormat.Q4_0 | WeightFormat.Q4_1:
            return 8
        case _:
            raise InvariantViolated(f"{weight_format.label} has no panels")


def lane_unit_bytes(v: Vectors, weight_format: WeightFormat) -> int:
    """From a unit to the next. Raises InvariantViolated for blocks of another size."""
    if weight_format.block_columns != UNIT_COLUMNS:
        raise InvariantViolated(f"blocks of {weight_format.block_columns} weights are not multiplied as bytes")
    return v.lanes * weight_format.block_bytes


@attrs.frozen(eq=False)
class LaneUnit:
    """A unit at an address."""

    weight_format: WeightFormat
    address: Int

    def codes(self, v: Vectors) -> list[Any]:
        """`CODE_WORDS` vectors of unsigned codes."""
        integers = Integers(v)
        if not is_nibbles(self.weight_format):
            return [integers.load(self._codes_at(v, word)) for word in range(CODE_WORDS)]
        pairs = [integers.load(self._codes_at(v, word)) for word in range(CODE_WORDS // 2)]
        return [*map(integers.low_nibbles, pairs), *map(integers.high_nibbles, pairs)]

    def scales(self, v: Vectors) -> list[Vector]:
        """Of the rows; for Q4_1, their lowest numbers too."""
        return [v.load_halfs(self.address + SCALE_BYTES * v.lanes * number) for number in range(scales_of(self.weight_format))]

    def weights(self, v: Vectors, column: Int) -> Vector:
        """The rows' weights in one column, as fp32."""
        integers = Integers(v)
        if is_nibbles(self.weight_format):
            byte, place, mask = column % _HALF_COLUMNS, column // _HALF_COLUMNS * _NIBBLE_BITS, 0xF
        else:
            byte, place, mask = column, v.emitter.integer(0), 0xFF
        words = integers.load(self._codes_at(v, byte // CODE_WORD_BYTES))
        codes = integers.field(words, place + byte % CODE_WORD_BYTES * _BYTE_BITS, mask)
        return _weights(v, self.weight_format, v.of_integers(codes), self.scales(v))

    def _codes_at(self, v: Vectors, word: Int | int) -> Int:
        begin = self.address + scales_of(self.weight_format) * SCALE_BYTES * v.lanes
        return begin + v.emitter.integer(word) * v.vector_bytes


def _weights(v: Vectors, weight_format: WeightFormat, codes: Vector, scales: list[Vector]) -> Vector:
    """Exactly the numbers of `WeightMatrix.dequantized`, from unsigned codes as fp32."""
    scale, *lowest = scales
    if lowest:
        return v.fma(codes, scale, lowest[0])
    return (codes - v.constant(float(middle_code(weight_format)))) * scale


def expand_lane_row(v: Vectors, weight_format: WeightFormat, *arguments: Int) -> None:
    """Writes one row of a matrix as fp32. Arguments: w, w_stride (from a panel to the next), row, columns, target."""
    w, w_stride, row, columns, target = arguments
    k, lane, numbers = v.emitter, row % v.lanes, v.emitter.stack_bytes(v.vector_bytes)
    panel, size = w + w_stride * (row // v.lanes), lane_unit_bytes(v, weight_format)
    with k.loop(0, columns) as column:
        unit = LaneUnit(weight_format, panel + column // UNIT_COLUMNS * size)
        v.store(numbers, unit.weights(v, column % UNIT_COLUMNS))
        v.store_lane(target + column * F32_BYTES, v.splat(numbers + lane * F32_BYTES))
