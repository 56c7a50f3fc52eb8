"""Writes fp32 numbers as whole ones of three digits, which products of bytes take.

Must not know: weights, models, where the numbers come from.

The 32 numbers of a block become whole multiples of a step, a power of two that makes the largest magnitude some 2^22 to 2^23
steps: each is off by half a step at most, some 2^-23 of that largest one or less. fp32 numbers are nearer to what they stand
for where they are small beside it, so that it must not be much larger than the others: one that is larger than all of them
together stays out, as an outlier, and is multiplied by itself. A whole number is d2 * 2^16 + d1 * 2^8 + d0 with digits of -128
to 127. A block lies where its numbers lay, in as many bytes:

    32 bytes of d2, then of d1, then of d0
    int32: -8 times the sum of d2, and of d1 * 2^8 + d0: what is added for codes that lie 8 too high; -128 times the same
    fp32: the outlier, 0 where there is none; int32: its column
    fp32: the step; the sum of the block's other numbers

What is not finite, or has the largest of all exponents, makes the step not a number, and so every product with the block.

Ozaki et al., Error-free transformations of matrix multiplication by using fast routines of matrix multiplication, 2012, split
both factors so; weights of blocks are whole numbers of one digit already.
"""

import functools
from typing import Any, Final

import attrs

from layered_llm.runtime.cpu.simd.kernels.emitter import I32, Bool, Function, Int
from layered_llm.runtime.cpu.simd.kernels.integers import Integers
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, Accumulator, Vector, VectorModule, Vectors

DIGITS_COLUMNS: Final = 32
"""Numbers of a block: those of a block of weights."""
DIGITS: Final = 3
"""Of a number, the highest first."""
OFFSETS: Final = (8, 128)
"""By how much codes may lie too high."""
_HIGH: Final = 1 << 16
"""What d2 counts."""
_STEP_BITS: Final = 22
"""The exponent of the largest magnitude over that of the step."""
_HIGH_BITS: Final = 1 << 17
"""What carries a number of nearly the next exponent into it: no number rounded up has a digit of 128."""
_EXPONENT_PLACE: Final = 23
"""Fp32 numbers have their exponent in the bits from here on."""
_EXPONENT_OF_1: Final = 127
_NO_EXPONENT: Final = 0xFF << _EXPONENT_PLACE
"""Of what is not finite."""
_NO_NUMBER: Final = _NO_EXPONENT + 1
_SMALLEST_BITS: Final = (_EXPONENT_OF_1 - 100) << _EXPONENT_PLACE
"""2^-100: the largest magnitude of a block of smaller numbers counts as this, so that fp32 has the step and its inverse."""
_BLOCK_BYTES: Final = DIGITS_COLUMNS * F32_BYTES
_STARTS: Final = DIGITS * DIGITS_COLUMNS
_OUTLIER: Final = _STARTS + 2 * len(OFFSETS) * F32_BYTES
_STEP: Final = _OUTLIER + 2 * F32_BYTES


@attrs.frozen
class DigitBlock:
    """A block at an address."""

    address: Int

    def at(self, number: Int | int) -> "DigitBlock":
        """So many blocks further."""
        return DigitBlock(self.address + self.address.emitter.integer(number) * _BLOCK_BYTES)

    def word(self, digit: int, word: int) -> Int:
        """Where 4 digits of neighbouring numbers lie, `digit` of 0 being the highest."""
        return self.address + (digit * DIGITS_COLUMNS + word * F32_BYTES)

    def high_start(self, offset: int) -> Int:
        """What is added to the sum with d2 for codes that lie `offset` too high."""
        return self.address + (_STARTS + 2 * OFFSETS.index(offset) * F32_BYTES)

    def lower_start(self, offset: int) -> Int:
        """The same for the sums with d1 and d0 together."""
        return self.high_start(offset) + F32_BYTES

    @property
    def outlier(self) -> Int:
        return self.address + _OUTLIER

    @property
    def outlier_column(self) -> Int:
        return self.address + (_OUTLIER + F32_BYTES)

    @property
    def step(self) -> Int:
        return self.address + _STEP

    @property
    def total(self) -> Int:
        """The sum of the numbers but the outlier."""
        return self.address + (_STEP + F32_BYTES)


def define_write_digits(module: VectorModule) -> Function:
    """Arguments: x, columns: fp32 numbers, whole blocks, in whose place their digits are written."""

    def emit(v: Vectors, x: Int, columns: Int) -> None:
        with v.emitter.loop(0, columns, DIGITS_COLUMNS) as first:
            _write_block(v, DigitBlock(x + first * F32_BYTES))

    return module.define("write_digits", emit, 2)


def _write_block(v: Vectors, block: DigitBlock) -> None:
    integers = Integers(v)
    parts = [v.accumulator(v.load(block.address + offset)) for offset in range(0, _BLOCK_BYTES, v.vector_bytes)]
    largest = v.accumulator(_largest(v, parts))
    v.emitter.store_int32(block.outlier, v.emitter.integer(0))
    with v.emitter.when(_exceeds_all_others(v, largest.get(), parts)):
        _take_outlier(v, block, largest.get(), parts)
        largest.set(_largest(v, parts))
    step, inverse = _step_for(v, largest.get())
    whole = [integers.nearest(part.get() * inverse) for part in parts]
    without_lower = [[integers.without_low_bytes(part, lower) for part in whole] for lower in range(DIGITS)]
    for lower, left in enumerate(without_lower):
        for number, part in enumerate(left):
            integers.store_low_bytes(block.word(DIGITS - 1 - lower, 0) + number * v.lanes, part)
    totals = integers.sums([integers.added(whole), integers.added(without_lower[-1])])
    v.store_quad(block.high_start(OFFSETS[0]), _starts(v, totals))
    v.store_lane(block.step, step)
    v.store_lane(block.total, integers.spread_first(totals) * step)


def _largest(v: Vectors, parts: list[Accumulator]) -> Vector:
    """The largest magnitude in all lanes; not a number where one is none."""
    integers = Integers(v)
    magnitudes = (integers.magnitude_bits(part.get()) for part in parts)
    return v.of_bits(integers.spread_largest(functools.reduce(integers.larger, magnitudes, v.same(I32, _SMALLEST_BITS))))


def _exceeds_all_others(v: Vectors, largest: Vector, parts: list[Accumulator]) -> Bool:
    """Then there is one such number."""
    integers = Integers(v)
    magnitudes = [v.of_bits(integers.magnitude_bits(part.get())) for part in parts]
    return v.is_first_larger(largest + largest, v.spread_sum(functools.reduce(Vector.__add__, magnitudes)))


def _take_outlier(v: Vectors, block: DigitBlock, largest: Vector, parts: list[Accumulator]) -> None:
    """Puts 0 in its place."""
    integers, nothing = Integers(v), v.constant(0.0)
    outlier, column = nothing, nothing
    for number, part in enumerate(parts):
        is_it = v.builder.icmp_signed("==", integers.magnitude_bits(part.get()), integers.of(largest))
        columns = v.lane_numbers() + v.constant(number * v.lanes)
        outlier, column = outlier + v.selected(is_it, part.get(), nothing), column + v.selected(is_it, columns, nothing)
        part.set(v.selected(is_it, nothing, part.get()))
    v.store_lane(block.outlier, v.spread_sum(outlier))
    v.store_lane(block.outlier_column, v.of_bits(integers.nearest(v.spread_sum(column))))


def _step_for(v: Vectors, largest: Vector) -> tuple[Vector, Vector]:
    """The step and its inverse."""
    integers, builder = Integers(v), v.builder
    exponent = builder.and_(builder.add(integers.of(largest), v.same(I32, _HIGH_BITS)), v.same(I32, _NO_EXPONENT))
    step = builder.sub(exponent, v.same(I32, _STEP_BITS << _EXPONENT_PLACE))
    is_number = builder.icmp_unsigned("<", exponent, v.same(I32, _NO_EXPONENT))
    step = builder.select(is_number, step, v.same(I32, _NO_NUMBER))
    inverse = builder.sub(v.same(I32, (2 * _EXPONENT_OF_1 + _STEP_BITS) << _EXPONENT_PLACE), exponent)
    return v.of_bits(step), v.of_bits(inverse)


def _starts(v: Vectors, totals: Any) -> Any:
    """From the sums of the whole numbers and of d2."""
    integers, builder = Integers(v), v.builder
    high = integers.chosen(totals, [1, 1, 1, 1])
    sums = builder.sub(integers.chosen(totals, [1, 0, 1, 0]), builder.mul(high, integers.quad([0, _HIGH] * 2)))
    return builder.mul(sums, integers.quad([-offset for offset in OFFSETS for _ in range(2)]))
