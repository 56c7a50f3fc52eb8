"""Register tiles: the dot products of a few token rows with a few weight rows, over a block of columns.

Must not know: models, threads, how many rows and columns there are in all.

Every sum is made in one order, whatever the tile: as many partial sums as a vector has lanes, over the columns in ascending
order, then these in a fixed tree; what the blocks of columns give is added up in ascending order. So an output never depends on
how many tokens are in a step.
"""

from typing import Final

import attrs

from layered_llm.runtime.matrices import WeightFormat
from layered_llm.runtime.simd.emitter import Function, Int
from layered_llm.runtime.simd.vectors import F32_BYTES, Accumulator, Vector, VectorModule, Vectors
from layered_llm.runtime.simd.weight_units import SCALES_BYTES, UNIT_COLUMNS, read_lanes, read_scales, read_unit

PANEL_ROWS: Final = 4
"""Weight rows that are packed together: vector by vector, those of the same columns side by side."""
_PREFETCH_BYTES: Final = 4096
"""How far ahead of their use weights are asked for: the hardware does not follow several streams of short rows by itself."""
_QUAD: Final = 4


@attrs.frozen(kw_only=True)
class Tile:
    """`tokens` x `outputs` sums that are kept in registers together."""

    weight_format: WeightFormat | None
    """None: fp32 in packed panels, in the cache. Else rows as they lie in memory."""
    tokens: int
    outputs: int

    @property
    def label(self) -> str:
        return "panel" if self.weight_format is None else self.weight_format.label


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
        return (self.x, self.x_stride, self.w, self.w_stride, self.columns, self.y, self.y_stride)


TILE_PARAMETERS: Final = len(attrs.fields(Operands)) + 1


def define_tile(module: VectorModule, tile: Tile) -> Function:
    """The function that computes `tile`. Its arguments are `Operands.arguments`, and whether y counts: 0 for the first block
    of columns, whose sums are the first.

    In packed panels, `w_stride` is not used.
    """
    name = f"dot_{tile.label}_{tile.tokens}x{tile.outputs}"

    def emit(v: Vectors, *arguments: Int) -> None:
        operands, continues = Operands(*arguments[:-1]), arguments[-1]
        sums = [[v.accumulator() for _ in range(tile.outputs)] for _ in range(tile.tokens)]
        if tile.weight_format is None:
            _add_panel(v, operands, sums)
        else:
            _add_units(v, tile.weight_format, operands, sums)
        for token, row in enumerate(sums):
            _add_to(v, operands.y + operands.y_stride * token, [accumulator.get() for accumulator in row], continues)

    return module.define(name, emit, TILE_PARAMETERS)


def _add_panel(v: Vectors, operands: Operands, sums: list[list[Accumulator]]) -> None:
    with v.emitter.loop(0, operands.columns * F32_BYTES, v.vector_bytes) as offset:
        panel = operands.w + offset * PANEL_ROWS
        weights = [v.load(panel + v.vector_bytes * output) for output in range(len(sums[0]))]
        _add(v, sums, operands.x + offset, operands.x_stride, weights)


def _add_units(v: Vectors, weight_format: WeightFormat, operands: Operands, sums: list[list[Accumulator]]) -> None:
    unit_bytes, units = weight_format.row_bytes(UNIT_COLUMNS), operands.columns // UNIT_COLUMNS
    rows = [operands.w + operands.w_stride * output for output in range(len(sums[0]))]
    scales = [read_scales(v, weight_format, row, units) for row in rows]
    with v.emitter.loop(0, units) as unit:
        sources = [row + unit * unit_bytes for row in rows]
        for source in sources:
            v.prefetch(source + _PREFETCH_BYTES)
        x = operands.x + unit * (UNIT_COLUMNS * F32_BYTES)
        at = [each + unit * SCALES_BYTES for each in scales]
        weights_of = [read_unit(v, weight_format, *where) for where in zip(sources, at, strict=True)]
        for part in range(UNIT_COLUMNS // v.lanes):
            _add(v, sums, x + v.vector_bytes * part, operands.x_stride, [weights[part] for weights in weights_of])
    if weight_format.block_columns == 1:
        with v.emitter.loop(operands.columns - operands.columns % UNIT_COLUMNS, operands.columns, v.lanes) as column:
            weights = [read_lanes(v, weight_format, row + column * weight_format.block_bytes) for row in rows]
            _add(v, sums, operands.x + column * F32_BYTES, operands.x_stride, weights)


def _add(v: Vectors, sums: list[list[Accumulator]], x: Int, x_stride: Int, weights: list[Vector]) -> None:
    for token, row in enumerate(sums):
        values = v.load(x + x_stride * token)
        for accumulator, weight in zip(row, weights, strict=True):
            accumulator.set(v.fma(values, weight, accumulator.get()))


def _add_to(v: Vectors, address: Int, row: list[Vector], continues: Int) -> None:
    for first in range(0, len(row), _QUAD):
        group = row[first : first + _QUAD]
        padded = group + group[:1] * (_QUAD - len(group))
        v.add_first(address + F32_BYTES * first, v.sums(padded), len(group), continues)
