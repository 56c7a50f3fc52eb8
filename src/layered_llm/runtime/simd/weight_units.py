"""Reads 32 weights, or a vector of them, of any format as fp32 vectors.

Must not know: what is computed with them.

The numbers are exactly those of `WeightMatrix.dequantized`: a product of an fp16 scale and a code of at most 8 bits is an fp32
number, so that only the sum of Q4_1 rounds, once in both.
"""

from collections.abc import Callable
from typing import Final, assert_never

from layered_llm.runtime.matrices import WeightFormat
from layered_llm.runtime.simd.emitter import I32, Int
from layered_llm.runtime.simd.vectors import F32_BYTES, Vector, Vectors

UNIT_COLUMNS: Final = 32
"""Weights that are read together: a block of the quantized formats."""
MAX_BLOCK_COLUMNS: Final = 640
"""Columns that are read in one go: 6 tokens and 4 weight rows of them, in fp32, fill most of a first cache of 32 KB."""
SCALES_BYTES: Final = 8
"""Room for the scales of a unit: two fp32 numbers, of which some formats use the first."""
_SCALE_BYTES: Final = 2
_NIBBLE_BYTES: Final = 16
"""Of a block of 4-bit codes."""
_CODES: Final = 16


def read_scales(v: Vectors, weight_format: WeightFormat, row: Int, units: Int) -> Int:
    """Where the scales of the first `units` units of a row now are as fp32, `SCALES_BYTES` for each; a block's at most.

    A pass of its own: from memory, a number is in all lanes at once, while shuffles are what reading 4-bit weights waits for.
    """
    scales = v.emitter.stack_bytes(MAX_BLOCK_COLUMNS // UNIT_COLUMNS * SCALES_BYTES)
    if weight_format.block_columns > 1:
        with v.emitter.loop(0, units) as unit:
            v.widen_pair(row + unit * weight_format.block_bytes, scales + unit * SCALES_BYTES)
    return scales


def read_unit(v: Vectors, weight_format: WeightFormat, address: Int, scales: Int) -> list[Vector]:
    """The 32 weights at `address`, whose scales have been read."""
    match weight_format:
        case WeightFormat.F32 | WeightFormat.BF16 | WeightFormat.F16:
            step = weight_format.row_bytes(v.lanes)
            return [read_lanes(v, weight_format, address + step * part) for part in range(UNIT_COLUMNS // v.lanes)]
        case WeightFormat.Q8_0:
            scale = v.splat(scales)
            return [code * scale for code in _bytes(v, address + _SCALE_BYTES)]
        case WeightFormat.Q4_0:
            scale = v.splat(scales)
            return _coded(v, address + _SCALE_BYTES, lambda code: (code - v.constant(8.0)) * scale)
        case WeightFormat.Q4_1:
            scale, lowest = v.splat(scales), v.splat(scales + F32_BYTES)
            return _coded(v, address + 2 * _SCALE_BYTES, lambda code: v.fma(code, scale, lowest))
        case _:
            assert_never(weight_format)


def read_lanes(v: Vectors, weight_format: WeightFormat, address: Int) -> Vector:
    """A vector of the weights at `address`, of a format without blocks."""
    if weight_format is WeightFormat.F32:
        return v.load(address)
    return v.load_bfloats(address) if weight_format is WeightFormat.BF16 else v.load_halfs(address)


def _bytes(v: Vectors, address: Int) -> list[Vector]:
    parts = (v.load_bytes(address + v.lanes * part) for part in range(UNIT_COLUMNS // v.lanes))
    return [v.of_integers(v.builder.sext(part, v.lanes_of(I32))) for part in parts]


def _coded(v: Vectors, address: Int, weight_of: Callable[[Vector], Vector]) -> list[Vector]:
    """The weights of the low nibbles of 16 bytes, then those of the high ones.

    Where a vector holds a weight for every code, they are looked up in it.
    """
    halves = [v.builder.zext(v.load_bytes(address + first), v.lanes_of(I32)) for first in range(0, _NIBBLE_BYTES, v.lanes)]
    high = [v.builder.lshr(half, v.same(I32, 4)) for half in halves]
    if v.lanes == _CODES:
        weights = weight_of(v.lane_numbers())
        return [v.looked_up(weights, codes) for codes in (*halves, *high)]
    low = [v.builder.and_(half, v.same(I32, _CODES - 1)) for half in halves]
    return [weight_of(v.of_integers(codes)) for codes in (*low, *high)]
