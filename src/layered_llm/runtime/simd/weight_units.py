"""Reads 32 or 8 weights of any format as fp32 vectors.

Must not know: what is computed with them.

The numbers are exactly those of `WeightMatrix.dequantized`: a product of an fp16 scale and a code of at most 8 bits is an fp32
number, so that only the sum of Q4_1 rounds, once in both.
"""

from typing import Any, Final, assert_never

from llvmlite import ir

from layered_llm.runtime.matrices import WeightFormat
from layered_llm.runtime.simd.emitter import I32, Int
from layered_llm.runtime.simd.vectors import LANES, VECTOR, Vector, Vectors, lanes_of

UNIT_COLUMNS: Final = 32
"""Weights that are read together: a block of the quantized formats."""
_PARTS: Final = UNIT_COLUMNS // LANES
_SCALE_BYTES: Final = 2


def read_unit(v: Vectors, weight_format: WeightFormat, address: Int) -> list[Vector]:
    """The 32 weights at `address`."""
    match weight_format:
        case WeightFormat.F32 | WeightFormat.BF16 | WeightFormat.F16:
            step = weight_format.row_bytes(LANES)
            return [read_lanes(v, weight_format, address + step * part) for part in range(_PARTS)]
        case WeightFormat.Q8_0:
            scale = v.splat_half(address)
            return [code * scale for code in _bytes(v, address + _SCALE_BYTES)]
        case WeightFormat.Q4_0:
            scale = v.splat_half(address)
            return [(code - v.constant(8.0)) * scale for code in _nibbles(v, address + _SCALE_BYTES)]
        case WeightFormat.Q4_1:
            scale, lowest = v.splat_half(address), v.splat_half(address + _SCALE_BYTES)
            return [v.fma(code, scale, lowest) for code in _nibbles(v, address + 2 * _SCALE_BYTES)]
        case _:
            assert_never(weight_format)


def read_lanes(v: Vectors, weight_format: WeightFormat, address: Int) -> Vector:
    """The 8 weights at `address`, of a format without blocks."""
    if weight_format is WeightFormat.F32:
        return v.load(address)
    return v.load_bfloats(address) if weight_format is WeightFormat.BF16 else v.load_halfs(address)


def _bytes(v: Vectors, address: Int) -> list[Vector]:
    parts = (v.load_bytes(address + LANES * part) for part in range(_PARTS))
    return [_as_floats(v, v.builder.sext(part, lanes_of(I32))) for part in parts]


def _nibbles(v: Vectors, address: Int) -> list[Vector]:
    """The low nibbles of 16 bytes, then the high ones."""
    wide = lanes_of(I32)
    halves = [v.builder.zext(v.load_bytes(address + LANES * half), wide) for half in range(2)]
    low = [v.builder.and_(half, ir.Constant(wide, [15] * LANES)) for half in halves]
    high = [v.builder.lshr(half, ir.Constant(wide, [4] * LANES)) for half in halves]
    return [_as_floats(v, part) for part in (*low, *high)]


def _as_floats(v: Vectors, integers: Any) -> Vector:
    return Vector(v, v.builder.sitofp(integers, VECTOR))
