"""Register tiles: the dot products of a few token rows with a few weight rows.

Must not know: models, threads, how many rows there are in all.

Every sum is made in one order, whatever the tile: 8 partial sums over the columns, in ascending order, then the 8 in a fixed
tree. So an output never depends on how many tokens are in a step.
"""

from typing import Final

import attrs

from layered_llm.runtime.matrices import WeightFormat
from layered_llm.runtime.simd.emitter import CodeModule, Function, Int
from layered_llm.runtime.simd.vectors import F32_BYTES, LANES, VECTOR_BYTES, Accumulator, Vector, Vectors, define
from layered_llm.runtime.simd.weight_units import UNIT_COLUMNS, read_lanes, read_unit

_PREFETCH_BYTES: Final = 2048
"""How far ahead of their use weights are asked for: the hardware does not follow several streams of short rows by itself."""
_QUAD: Final = 4


@attrs.frozen(kw_only=True)
class Tile:
    """`tokens` x `outputs` sums that are kept in registers together."""

    weight_format: WeightFormat
    tokens: int
    outputs: int
    has_prefetch: bool
    """Whether weights come from memory, and not from the cache."""


@attrs.frozen(eq=False)
class Operands:
    """y [tokens, outputs] = x [tokens, columns] W^T for W [outputs, columns]: addresses, and strides in bytes."""

    x: Int
    x_stride: Int
    w: Int
    w_stride: Int
    columns: Int
    y: Int
    y_stride: Int

    def at(self, token: Int | int, output: Int | int) -> "Operands":
        """The same from this token and this weight row on."""
        token, output = self.x.emitter.integer(token), self.x.emitter.integer(output)
        return attrs.evolve(
            self,
            x=self.x + self.x_stride * token,
            w=self.w + self.w_stride * output,
            y=self.y + self.y_stride * token + output * F32_BYTES,
        )

    def arguments(self) -> tuple[Int, ...]:
        """What a function of `define_tile` is called with."""
        return (self.x, self.x_stride, self.w, self.w_stride, self.columns, self.y, self.y_stride)


def define_tile(module: CodeModule, tile: Tile) -> Function:
    """The function that computes `tile`; its arguments are `Operands.arguments`."""
    name = f"dot_{tile.weight_format.label}_{tile.tokens}x{tile.outputs}{'_streamed' if tile.has_prefetch else ''}"

    def emit(v: Vectors, *arguments: Int) -> None:
        operands = Operands(*arguments)
        sums = [[v.accumulator() for _ in range(tile.outputs)] for _ in range(tile.tokens)]
        _add_units(v, tile, operands, sums)
        if tile.weight_format.block_columns == 1:
            _add_rest(v, tile, operands, sums)
        for token, row in enumerate(sums):
            _store_sums(v, operands.y + operands.y_stride * token, [accumulator.get() for accumulator in row])

    return define(module, name, emit, 7)


def _add_units(v: Vectors, tile: Tile, operands: Operands, sums: list[list[Accumulator]]) -> None:
    unit_bytes = tile.weight_format.row_bytes(UNIT_COLUMNS)
    rows = [operands.w + operands.w_stride * output for output in range(tile.outputs)]
    with v.emitter.loop(0, operands.columns // UNIT_COLUMNS) as unit:
        sources = [row + unit * unit_bytes for row in rows]
        if tile.has_prefetch:
            for source in sources:
                v.prefetch(source + _PREFETCH_BYTES)
        x = operands.x + unit * (UNIT_COLUMNS * F32_BYTES)
        units = [read_unit(v, tile.weight_format, source) for source in sources]
        for part in range(UNIT_COLUMNS // LANES):
            _add(v, sums, x + VECTOR_BYTES * part, operands.x_stride, [weights[part] for weights in units])


def _add_rest(v: Vectors, tile: Tile, operands: Operands, sums: list[list[Accumulator]]) -> None:
    """Columns behind the last whole unit, 8 by 8."""
    rows = [operands.w + operands.w_stride * output for output in range(tile.outputs)]
    rest = operands.columns % UNIT_COLUMNS
    with v.emitter.loop(operands.columns - rest, operands.columns, LANES) as column:
        offset = column * tile.weight_format.block_bytes
        weights = [read_lanes(v, tile.weight_format, row + offset) for row in rows]
        _add(v, sums, operands.x + column * F32_BYTES, operands.x_stride, weights)


def _add(v: Vectors, sums: list[list[Accumulator]], x: Int, x_stride: Int, weights: list[Vector]) -> None:
    for token, row in enumerate(sums):
        values = v.load(x + x_stride * token)
        for accumulator, weight in zip(row, weights, strict=True):
            accumulator.set(v.fma(values, weight, accumulator.get()))


def _store_sums(v: Vectors, address: Int, row: list[Vector]) -> None:
    for first in range(0, len(row), _QUAD):
        group = row[first : first + _QUAD]
        padded = group + group[:1] * (_QUAD - len(group))
        v.store_first(address + F32_BYTES * first, v.sums(padded), len(group))
