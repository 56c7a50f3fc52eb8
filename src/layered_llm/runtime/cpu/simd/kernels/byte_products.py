"""Linear layers over blocks of weights by products of bytes: codes of weights times digits of activations.

Must not know: models, how rows are shared out between threads, how digits are made.

A lane of a vector is a row of a panel, so that no sum goes across lanes. Of 32 weights and activations, the products with each
digit are added up as integers, which is exact; the three sums become one fp32 number, which the scales of both sides multiply.
So a product of fp32 numbers costs three of bytes, of which there are four for each fp32 one. The codes are never expanded, but
in the column of a block's outlier. An output's sum has one order whatever is computed beside it.
"""

from typing import Final

import attrs

from layered_llm.runtime.checkpoint.matrices import WeightFormat
from layered_llm.runtime.cpu.simd.kernels.digits import DIGITS, DigitBlock
from layered_llm.runtime.cpu.simd.kernels.dot_tiles import ask_ahead
from layered_llm.runtime.cpu.simd.kernels.emitter import I32, Function, Int
from layered_llm.runtime.cpu.simd.kernels.integers import Integers
from layered_llm.runtime.cpu.simd.kernels.lane_units import LaneUnit, lane_unit_bytes, middle_code
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, Accumulator, VectorModule, Vectors
from layered_llm.runtime.cpu.simd.kernels.weight_units import UNIT_COLUMNS

_TILE_TOKENS: Final = 4
_TILE_TOKENS_FEW_REGISTERS: Final = 2
_HIGH_DIGIT: Final = 65_536.0


@attrs.frozen(eq=False)
class Inputs:
    """Some tokens in digits: addresses, and a stride in bytes."""

    x: Int
    stride: Int
    tokens: int

    def blocks(self, number: Int) -> list[DigitBlock]:
        return [DigitBlock(self.x + self.stride * token).at(number) for token in range(self.tokens)]


def define_byte_linear(module: VectorModule, weight_format: WeightFormat, name: str, parameters: int) -> Function:
    """The same arguments as those of `LinearKernels.define`; x lies in digits, and no scratch is used."""
    most = _TILE_TOKENS_FEW_REGISTERS if module.has_few_registers else _TILE_TOKENS
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

    return module.define(name, emit, parameters)


def _define_tile(module: VectorModule, weight_format: WeightFormat, tokens: int) -> Function:
    """`tokens` times a panel. Arguments: x, x_stride, panel, columns, y, y_stride, rows that count."""

    def emit(v: Vectors, *arguments: Int) -> None:
        x, x_stride, panel, columns, y, y_stride, rows = arguments
        inputs, sums = Inputs(x, x_stride, tokens), [v.accumulator() for _ in range(tokens)]
        size = lane_unit_bytes(v, weight_format)
        with v.emitter.loop(0, columns // UNIT_COLUMNS) as number:
            unit = LaneUnit(weight_format, panel + number * size)
            ask_ahead(v, unit.address, size)
            _add_unit(v, unit, inputs.blocks(number), sums)
        for token, accumulator in enumerate(sums):
            Integers(v).store_first(y + y_stride * token, accumulator.get(), rows)

    return module.define(f"bytes_{weight_format.label}_{tokens}", emit, 7)


def _add_unit(v: Vectors, unit: LaneUnit, blocks: list[DigitBlock], sums: list[Accumulator]) -> None:
    integers, (scale, *lowest) = Integers(v), unit.scales(v)
    middle = middle_code(unit.weight_format)
    middles = [v.fma(v.constant(float(middle)), scale, each) for each in lowest]
    # Unsigned codes alone would make sums that are much larger than what is left of them.
    products = [[integers.splat(block.high_start(middle)), v.same(I32, 0), v.same(I32, 0)] for block in blocks]
    for word, code in enumerate(unit.codes(v)):
        for block, of_digits in zip(blocks, products, strict=True):
            for digit in range(DIGITS):
                digits = integers.splat(block.word(digit, word))
                of_digits[digit] = integers.add_products(of_digits[digit], code, digits)
    for block, of_digits, accumulator in zip(blocks, products, sums, strict=True):
        high, *lower = of_digits
        rest = integers.added([integers.joined(*lower), integers.splat(block.lower_start(middle))])
        whole = v.fma(v.of_integers(high), v.constant(_HIGH_DIGIT), v.of_integers(rest))
        total = v.fma(whole, scale * v.splat(block.step), accumulator.get())
        for each in middles:
            total = v.fma(each, v.splat(block.total), total)
        accumulator.set(total)
    for block, accumulator in zip(blocks, sums, strict=True):
        with v.emitter.when(v.emitter.load_int32(block.outlier).differs(0)):
            weights = unit.weights(v, v.emitter.load_int32(block.outlier_column))
            accumulator.set(v.fma(weights, v.splat(block.outlier), accumulator.get()))
