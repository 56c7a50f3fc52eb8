"""Linear layers over blocks of weights by products of bytes: codes of weights times digits of activations.

Must not know: models, how rows are shared out between threads, how digits are made.

A lane of a vector is a row of a panel, so that no sum goes across lanes. Of 32 weights and activations, the products with each
digit are added up as integers, which is exact; the three sums become one fp32 number, which the scales of both sides multiply.
So a product of fp32 numbers costs three of bytes, of which there are four for each fp32 one. The codes are never expanded, and
an output's sum has one order whatever is computed beside it.
"""

from typing import Any, Final, assert_never

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.matrices import WeightFormat
from layered_llm.runtime.panels import SCALE_BYTES, WORD_BYTES, scales_of
from layered_llm.runtime.simd.digits import DIGITS, DigitBlock
from layered_llm.runtime.simd.emitter import Function, Int
from layered_llm.runtime.simd.integers import Integers
from layered_llm.runtime.simd.machine import LINE_BYTES
from layered_llm.runtime.simd.vectors import F32_BYTES, Accumulator, Vector, VectorModule, Vectors

_PREFETCH_BYTES: Final = 2048
"""How far ahead of their use weights are asked for."""
_WORDS: Final = 8
"""Of the 32 codes of a row, and of a block's digits."""
_HIGH_DIGIT: Final = 65_536.0


@attrs.frozen(eq=False)
class LaneUnit:
    """A unit of a panel that has a row for each lane."""

    weight_format: WeightFormat
    address: Int

    def codes(self, v: Vectors) -> list[Any]:
        """`_WORDS` vectors, in each lane 4 neighbouring codes of its row, unsigned."""
        integers, begin = Integers(v), self.address + scales_of(self.weight_format) * SCALE_BYTES * v.lanes
        match self.weight_format:
            case WeightFormat.Q8_0:
                return [integers.load(begin + v.vector_bytes * word) for word in range(_WORDS)]
            case WeightFormat.Q4_0 | WeightFormat.Q4_1:
                pairs = [integers.load(begin + v.vector_bytes * word) for word in range(_WORDS // 2)]
                return [*map(integers.low_nibbles, pairs), *map(integers.high_nibbles, pairs)]
            case _:
                raise InvariantViolated(f"{self.weight_format.label} has no panels")

    def scales(self, v: Vectors) -> list[Vector]:
        """Of the rows; for Q4_1, their lowest numbers too."""
        return [v.load_halfs(self.address + SCALE_BYTES * v.lanes * number) for number in range(scales_of(self.weight_format))]


def unit_bytes(v: Vectors, weight_format: WeightFormat) -> int:
    """From a unit to the next."""
    return v.lanes * weight_format.block_bytes


def define_byte_linear(module: VectorModule, weight_format: WeightFormat) -> Function:
    """The same arguments as those of `LinearKernels.define`, but x lies in digits; no scratch is used."""
    most = 2 if module.has_few_registers else 4
    tiles = {tokens: _define_tile(module, weight_format, tokens) for tokens in range(1, most + 1)}

    def emit(v: Vectors, *arguments: Int) -> None:
        x, x_stride, w, w_stride, columns, y, y_stride, tokens, rows, _ = arguments
        k, left = v.emitter, tokens % most

        def multiply(count: int, first: Int) -> None:
            x_at, y_at = x + x_stride * first, y + y_stride * first
            with k.loop(0, rows, v.lanes) as row:
                w_at = w + w_stride * (row // v.lanes)
                tiles[count](x_at, x_stride, w_at, columns, y_at + row * F32_BYTES, y_stride, rows - row)

        with k.loop(0, tokens - left, most) as first:
            multiply(most, first)
        for count in range(1, most):
            with k.when(left.equals(count)):
                multiply(count, tokens - left)

    return module.define(f"linear_{weight_format.label}", emit, 10)


def _define_tile(module: VectorModule, weight_format: WeightFormat, tokens: int) -> Function:
    """`tokens` times a panel. Arguments: x, x_stride, panel, columns, y, y_stride, rows that count."""

    def emit(v: Vectors, *arguments: Int) -> None:
        x, x_stride, panel, columns, y, y_stride, rows = arguments
        sums, size = [v.accumulator() for _ in range(tokens)], unit_bytes(v, weight_format)
        with v.emitter.loop(0, columns // weight_format.block_columns) as number:
            unit = LaneUnit(weight_format, panel + number * size)
            for line in range(0, size, LINE_BYTES):
                v.prefetch(unit.address + (line + _PREFETCH_BYTES))
            blocks = [DigitBlock(x + x_stride * token).at(number) for token in range(tokens)]
            _add_unit(v, unit, blocks, sums)
        for token, accumulator in enumerate(sums):
            Integers(v).store_first(y + y_stride * token, accumulator.get(), rows)

    return module.define(f"bytes_{weight_format.label}_{tokens}", emit, 7)


def _add_unit(v: Vectors, unit: LaneUnit, blocks: list[DigitBlock], sums: list[Accumulator]) -> None:
    integers, codes, (scale, *lowest) = Integers(v), unit.codes(v), unit.scales(v)
    products = [[_start(v, unit.weight_format, block, digit) for digit in range(DIGITS)] for block in blocks]
    for word, code in enumerate(codes):
        for block, of_digits in zip(blocks, products, strict=True):
            for digit in range(DIGITS):
                digits = integers.splat(block.word(digit, word))
                of_digits[digit] = integers.add_products(of_digits[digit], code, digits)
    for block, (high, middle, low), accumulator in zip(blocks, products, sums, strict=True):
        rest = v.of_integers(integers.joined(middle, low))
        whole = v.fma(v.of_integers(high), v.constant(_HIGH_DIGIT), rest)
        total = v.fma(whole, scale * v.splat(block.step), accumulator.get())
        for each in lowest:
            total = v.fma(each, v.splat(block.total), total)
        accumulator.set(total)


def _start(v: Vectors, weight_format: WeightFormat, block: DigitBlock, digit: int) -> Any:
    """What the sum of products begins with, so that it ends as that with the signed codes."""
    integers = Integers(v)
    match weight_format:
        case WeightFormat.Q8_0:
            return integers.splat(block.start(128, digit))
        case WeightFormat.Q4_0:
            return integers.splat(block.start(8, digit))
        case WeightFormat.Q4_1:
            return integers.zeros
        case WeightFormat.F32 | WeightFormat.BF16 | WeightFormat.F16:
            raise InvariantViolated(f"{weight_format.label} has no panels")
        case _:
            assert_never(weight_format)


def expand_lane_row(v: Vectors, weight_format: WeightFormat, *arguments: Int) -> None:
    """Writes one row of a matrix as fp32. Arguments: w, w_stride (from a panel to the next), row, columns, target."""
    w, w_stride, row, columns, target = arguments
    k, lane = v.emitter, row % v.lanes
    panel, codes = w + w_stride * (row // v.lanes), k.stack_bytes(weight_format.block_columns)
    scale_rows, size = scales_of(weight_format), unit_bytes(v, weight_format)
    words = (weight_format.block_bytes - scale_rows * SCALE_BYTES) // WORD_BYTES
    with k.loop(0, columns // weight_format.block_columns) as number:
        unit = panel + number * size
        for word in range(words):
            at = unit + (scale_rows * SCALE_BYTES + word * WORD_BYTES) * v.lanes
            k.store_int32(codes + word * WORD_BYTES, k.load_int32(at + lane * WORD_BYTES))
        scales = [v.splat_half(unit + (lane + v.lanes * scale) * SCALE_BYTES) for scale in range(scale_rows)]
        _store_numbers(v, weight_format, codes, scales, target + number * (weight_format.block_columns * F32_BYTES))


def _store_numbers(v: Vectors, weight_format: WeightFormat, codes: Int, scales: list[Vector], target: Int) -> None:
    """A row's block from its codes, as they lie in a panel, one behind the other."""
    integers, (scale, *lowest) = Integers(v), scales
    if weight_format is WeightFormat.Q8_0:
        parts = [integers.load_bytes(codes + first) for first in range(0, weight_format.block_columns, v.lanes)]
        numbers = [v.of_integers(part) - v.constant(128.0) for part in parts]
    else:
        pairs = [integers.load_bytes(codes + first) for first in range(0, weight_format.block_columns // 2, v.lanes)]
        parts = [*map(integers.low_nibbles, pairs), *map(integers.high_nibbles, pairs)]
        numbers = [v.of_integers(part) - v.constant(0.0 if lowest else 8.0) for part in parts]
    for number, code in enumerate(numbers):
        value = v.fma(code, scale, lowest[0]) if lowest else code * scale
        v.store(target + number * v.vector_bytes, value)
