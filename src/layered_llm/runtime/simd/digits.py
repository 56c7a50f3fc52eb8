"""Writes fp32 numbers as whole ones of three digits, which products of bytes take.

Must not know: weights, models, where the numbers come from.

The 32 numbers of a block become whole multiples of a step, a power of two that makes the largest magnitude some 2^22 to 2^23
steps: each is off by half a step at most, some 2^-23 of that largest one or less, which a sum of fp32 numbers loses too. A
whole number is d2 * 2^16 + d1 * 2^8 + d0 with digits of -128 to 127. A block lies where its numbers lay, in as many bytes:

    32 bytes of d2, then of d1, then of d0
    int32: -8 times the sum of d0, of d1, of d2; -128 times the same
    fp32: the step; the sum of the block's numbers

The integers are what sums begin with where weights lie 8 or 128 too high. What is not finite makes the step not a number, and
so every product with it.

Ozaki et al., Error-free transformations of matrix multiplication by using fast routines of matrix multiplication, 2012, split
both factors so; weights of blocks are whole numbers of one digit already.
"""

import functools
from typing import Final

import attrs

from layered_llm.runtime.simd.emitter import I32, Function, Int
from layered_llm.runtime.simd.integers import Integers
from layered_llm.runtime.simd.vectors import F32_BYTES, Vector, VectorModule, Vectors

DIGITS_COLUMNS: Final = 32
"""Numbers of a block: those of a block of weights."""
DIGITS: Final = 3
"""Of a number, the highest first."""
_RADIX: Final = 256
_STEP_BITS: Final = 22
"""The exponent of the largest magnitude over that of the step."""
_HIGH_BITS: Final = 1 << 17
"""What carries a number of nearly the next exponent into it: no number rounded up has a digit of 128."""
_EXPONENT_PLACE: Final = 23
"""Fp32 numbers have their exponent in the bits from here on."""
_EXPONENT_OF_1: Final = 127
_NO_NUMBER: Final = 0xFF << _EXPONENT_PLACE
"""The exponent of what is not finite."""
_SMALLEST_BITS: Final = (_EXPONENT_OF_1 - 100) << _EXPONENT_PLACE
"""2^-100: the largest magnitude of a block of smaller numbers counts as this, so that fp32 has the step and its inverse."""
_BLOCK_BYTES: Final = DIGITS_COLUMNS * F32_BYTES
_STARTS: Final = {8: DIGITS * DIGITS_COLUMNS, 128: DIGITS * (DIGITS_COLUMNS + F32_BYTES)}
"""Where the integers lie that sums begin with, for weights that lie so much too high."""
_STEP: Final = DIGITS * (DIGITS_COLUMNS + 2 * F32_BYTES)


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

    def start(self, offset: int, digit: int) -> Int:
        """Where an integer sum begins for weights that lie `offset` too high, 8 or 128."""
        return self.address + (_STARTS[offset] + (DIGITS - 1 - digit) * F32_BYTES)

    @property
    def step(self) -> Int:
        return self.address + _STEP

    @property
    def total(self) -> Int:
        """The sum of the numbers."""
        return self.address + (_STEP + F32_BYTES)


def define_write_digits(module: VectorModule) -> Function:
    """Arguments: x, columns: fp32 numbers, whole blocks, in whose place their digits are written."""

    def emit(v: Vectors, x: Int, columns: Int) -> None:
        with v.emitter.loop(0, columns, DIGITS_COLUMNS) as first:
            _write_block(v, DigitBlock(x + first * F32_BYTES))

    return module.define("write_digits", emit, 2)


def _write_block(v: Vectors, block: DigitBlock) -> None:
    integers, builder = Integers(v), v.builder
    parts = [v.load(block.address + offset) for offset in range(0, _BLOCK_BYTES, v.vector_bytes)]
    step, steps = _step_for(v, parts)
    whole = [integers.nearest(part * steps) for part in parts]
    sums = []
    for lower in range(DIGITS):
        left = [integers.without_low_bytes(part, lower) for part in whole]
        for number, part in enumerate(left):
            integers.store_low_bytes(block.word(DIGITS - 1 - lower, 0) + number * v.lanes, part)
        sums.append(integers.added(left))
    totals = integers.sums(sums)
    above = builder.mul(integers.quad_behind(totals), integers.quad([_RADIX] * 4))
    negative = builder.sub(above, totals)
    for offset in _STARTS:
        v.store_quad(block.start(offset, DIGITS - 1), builder.mul(negative, integers.quad([offset] * 4)))
    v.store_lane(block.step, step)
    v.store_lane(block.total, integers.spread_first(totals) * step)


def _step_for(v: Vectors, parts: list[Vector]) -> tuple[Vector, Vector]:
    """The step, and what it is the inverse of."""
    integers, builder = Integers(v), v.builder
    bits = functools.reduce(integers.larger, map(integers.magnitude_bits, parts), v.same(I32, _SMALLEST_BITS))
    raised = builder.add(integers.spread_largest(bits), v.same(I32, _HIGH_BITS))
    exponent = builder.and_(raised, v.same(I32, _NO_NUMBER))
    step = builder.sub(exponent, v.same(I32, _STEP_BITS << _EXPONENT_PLACE))
    is_number = builder.icmp_unsigned("<", exponent, v.same(I32, _NO_NUMBER))
    step = builder.select(is_number, step, v.same(I32, _NO_NUMBER + 1))
    steps = builder.sub(v.same(I32, (2 * _EXPONENT_OF_1 + _STEP_BITS) << _EXPONENT_PLACE), exponent)
    return v.of_bits(step), v.of_bits(steps)
