"""Register tiles: the dot products of a few token rows with a few weight rows, over a block of columns.

Must not know: models, threads, how many rows and columns there are in all.

Every sum is made in one order, whatever the tile: as many partial sums as a vector has lanes, over the columns in ascending
order, then these in a fixed tree; what the blocks of columns give is added up in ascending order. So an output never depends on
how many tokens are in a step.
"""

from typing import Final

import attrs

from layered_llm.runtime.checkpoint.matrices import WeightFormat
from layered_llm.runtime.checkpoint.panels import PANEL_ROWS
from layered_llm.runtime.cpu.simd.kernels.emitter import Function, Int
from layered_llm.runtime.cpu.simd.kernels.machine import LINE_BYTES
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, Accumulator, Vector, VectorModule, Vectors
from layered_llm.runtime.cpu.simd.kernels.weight_units import UNIT_COLUMNS, PanelUnits, read_lanes, unit_bytes

_PREFETCH_BYTES: Final = 2048
"""How far ahead of their use weights are asked for: the hardware begins anew at each page, and does not follow several streams
of short rows."""
_QUAD: Final = 4


@attrs.frozen(kw_only=True)
class Tile:
    """`tokens` x `outputs` sums that are kept in registers together."""

    weight_format: WeightFormat | None
    """None: fp32 in a cache, `PANEL_ROWS` rows vector by vector. Else as weights lie in memory: rows, or panels of blocks."""
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


TILE_PARAMETERS: Final = len(attrs.fields(Operands)) + 2


def define_tile(module: VectorModule, tile: Tile) -> Function:
    """The function that computes `tile`. Its arguments are `Operands.arguments`; the first row's place in its panel, where the
    weights lie in panels; and whether y counts: 0 for the first block of columns, whose sums are the first.

    Where the weights lie in panels, `w` is the panel's begin, and `w_stride` is not used.
    """
    name = f"dot_{tile.label}_{tile.tokens}x{tile.outputs}"

    def emit(v: Vectors, *arguments: Int) -> None:
        operands, (place, continues) = Operands(*arguments[:-2]), arguments[-2:]
        sums = [[v.accumulator() for _ in range(tile.outputs)] for _ in range(tile.tokens)]
        match tile.weight_format:
            case None:
                _add_expanded(v, operands, sums)
            case WeightFormat.F32 | WeightFormat.BF16 | WeightFormat.F16 as weight_format:
                _add_rows(v, weight_format, operands, sums)
            case WeightFormat.Q8_0 | WeightFormat.Q4_0 | WeightFormat.Q4_1 as weight_format:
                _add_panel(v, weight_format, operands, place if tile.outputs < PANEL_ROWS else v.emitter.integer(0), sums)
        _add_to_outputs(v, operands, sums, continues)

    return module.define(name, emit, TILE_PARAMETERS)


def ask_ahead(v: Vectors, address: Int, size_bytes: int) -> None:
    """Asks for as many bytes as are read at `address`, some way behind them."""
    for line in range(0, size_bytes, LINE_BYTES):
        v.prefetch(address + (line + _PREFETCH_BYTES))


def _add_expanded(v: Vectors, operands: Operands, sums: list[list[Accumulator]]) -> None:
    with v.emitter.loop(0, operands.columns * F32_BYTES, v.vector_bytes) as offset:
        panel = operands.w + offset * PANEL_ROWS
        weights = [v.load(panel + v.vector_bytes * output) for output in range(len(sums[0]))]
        _add(v, sums, operands.x + offset, operands.x_stride, weights)


def _add_panel(v: Vectors, weight_format: WeightFormat, operands: Operands, place: Int, sums: list[list[Accumulator]]) -> None:
    count = operands.columns // UNIT_COLUMNS
    units = PanelUnits.of(v, weight_format, operands.w)
    with v.emitter.loop(0, count) as unit:
        ask_ahead(v, units.at(unit), unit_bytes(weight_format))
        weights_of = units.read(v, unit, place, len(sums[0]))
        for part in range(UNIT_COLUMNS // v.lanes):
            x = operands.x + unit * (UNIT_COLUMNS * F32_BYTES) + v.vector_bytes * part
            _add(v, sums, x, operands.x_stride, [weights[part] for weights in weights_of])


def _add_rows(v: Vectors, weight_format: WeightFormat, operands: Operands, sums: list[list[Accumulator]]) -> None:
    rows = [operands.w + operands.w_stride * output for output in range(len(sums[0]))]

    def add(column: Int) -> None:
        weights = [read_lanes(v, weight_format, row + column * weight_format.block_bytes) for row in rows]
        _add(v, sums, operands.x + column * F32_BYTES, operands.x_stride, weights)

    whole = operands.columns - operands.columns % UNIT_COLUMNS
    with v.emitter.loop(0, whole, UNIT_COLUMNS) as first:
        for row in rows:
            v.prefetch(row + first * weight_format.block_bytes + _PREFETCH_BYTES)
        for part in range(0, UNIT_COLUMNS, v.lanes):
            add(first + part)
    with v.emitter.loop(whole, operands.columns, v.lanes) as column:
        add(column)


def _add(v: Vectors, sums: list[list[Accumulator]], x: Int, x_stride: Int, weights: list[Vector]) -> None:
    for token, row in enumerate(sums):
        values = v.load(x + x_stride * token)
        for accumulator, weight in zip(row, weights, strict=True):
            accumulator.set(v.fma(values, weight, accumulator.get()))


def _add_to_outputs(v: Vectors, operands: Operands, sums: list[list[Accumulator]], continues: Int) -> None:
    """Four vectors are summed up at once: of one token, or of several whose outputs fill four."""
    outputs = len(sums[0])
    tokens = _QUAD // outputs
    for first in range(0, len(sums), tokens):
        group = [accumulator.get() for row in sums[first : first + tokens] for accumulator in row]
        quad = v.sums(group + group[:1] * (_QUAD - len(group)))
        for token in range(len(group) // outputs):
            y = operands.y + operands.y_stride * (first + token)
            v.add_lanes(y, quad, range(token * outputs, (token + 1) * outputs), continues)
