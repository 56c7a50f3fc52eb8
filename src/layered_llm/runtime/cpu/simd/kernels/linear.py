"""Linear layers: some rows of a weight matrix, times the activations of all tokens of a step.

Must not know: models, how rows are shared out between threads.

Blocks of weights are multiplied as bytes where the processor can (`byte_products.py`). Other weights, or all of them, are
expanded in registers, once for up to 4 tokens (8 where there are 32 registers), as they come from memory. Many tokens would
expand them again and again: they are expanded into a scratch that stays in the cache, and multiplied in register tiles from
there. Columns are taken in blocks, so that this scratch stays small; the blocks depend on the number of columns alone.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import attrs

from layered_llm.runtime.checkpoint.matrices import WeightFormat
from layered_llm.runtime.checkpoint.panels import PANEL_ROWS, has_panels
from layered_llm.runtime.cpu.simd.kernels.byte_products import define_byte_linear
from layered_llm.runtime.cpu.simd.kernels.dot_tiles import Operands, Tile, define_tile
from layered_llm.runtime.cpu.simd.kernels.emitter import Function, Int
from layered_llm.runtime.cpu.simd.kernels.lane_units import expand_lane_row
from layered_llm.runtime.cpu.simd.kernels.machine import WIDE_LANES
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, VectorModule, Vectors
from layered_llm.runtime.cpu.simd.kernels.weight_units import (
    MAX_BLOCK_COLUMNS,
    UNIT_COLUMNS,
    PanelUnits,
    read_lanes,
    unit_bytes,
)

LINEAR_PARAMETERS: Final = 10
_DIRECT_FEW: Final[Mapping[int, int]] = MappingProxyType({1: 4, 2: 4, 3: 4, 4: 2})
"""By tokens, as long as weights are expanded in registers: the weight rows of a tile."""
_DIRECT_MANY: Final[Mapping[int, int]] = MappingProxyType({1: 4, 2: 4, 3: 4, 4: 4, 5: 4, 6: 2, 7: 2, 8: 2})
"""The same with 32 registers. As in the other, tiles are as large parts of a panel as each other."""
_DIRECT_ROWS: Final[Mapping[int, int]] = MappingProxyType({1: 1, 2: 1, 3: 1, 4: 1, 5: 4, 6: 3, 7: 2, 8: 2})
"""The same of rows that lie by themselves, with wide vectors. Few tokens wait for memory: of one row at a time, the hardware
reads ahead by itself, which was measured to be a quarter faster."""
_DIRECT_ROUNDS: Final = 3
"""How often expanding weights in registers costs less than expanding them into the scratch once."""


def scratch_floats(rows: int, columns: int) -> int:
    """Fp32 numbers that a call needs."""
    return -(-rows // PANEL_ROWS) * PANEL_ROWS * min(columns, MAX_BLOCK_COLUMNS)


def linear_name(weight_format: WeightFormat) -> str:
    """Of the function that `LinearKernels.define` generates."""
    return f"linear_{weight_format.label}"


@attrs.define(kw_only=True)
class LinearKernels:
    """Generates the linear layers of one module, each function once."""

    module: VectorModule
    _tiles: dict[Tile, Function] = attrs.Factory(dict)

    def define(self, weight_format: WeightFormat) -> Function:
        """Multiplies tokens with weight rows of this format. The function's arguments, strides in bytes:

        x, x_stride ([tokens, columns], fp32 or digits), w, w_stride (from a row to the next; of formats with blocks, from a
        panel), columns, y, y_stride ([tokens, rows]), tokens, rows, scratch (fp32, as many as `scratch_floats` says).
        """

        if _is_of_bytes(self.module, weight_format):
            return define_byte_linear(self.module, weight_format, linear_name(weight_format), LINEAR_PARAMETERS)

        def emit(v: Vectors, *arguments: Int) -> None:
            operands, (tokens, rows, scratch) = Operands(*arguments[:7]), arguments[7:]
            most = max(self._direct_tiles(weight_format)) * _DIRECT_ROUNDS
            with v.emitter.when(tokens <= most):
                self._few(v, weight_format, operands, tokens, rows)
            with v.emitter.when(tokens > most):
                self._many(v, weight_format, operands, tokens, rows, scratch)

        return self.module.define(linear_name(weight_format), emit, LINEAR_PARAMETERS)

    def _direct_tiles(self, weight_format: WeightFormat) -> Mapping[int, int]:
        if self.module.has_few_registers:
            return _DIRECT_FEW
        return _DIRECT_ROWS if self.module.lanes == WIDE_LANES and not has_panels(weight_format) else _DIRECT_MANY

    def _few(self, v: Vectors, weight_format: WeightFormat, operands: Operands, *rest: Int) -> None:
        tokens, rows = rest
        k, most = v.emitter, max(self._direct_tiles(weight_format))
        left = tokens % most

        def emit(count: int, first: Int) -> None:
            self._direct(v, weight_format, operands.at(first, 0), rows, count=count)

        with k.loop(0, tokens - left, most) as first:
            emit(most, first)
        for count in range(1, most):
            with k.when(left.equals(count)):
                emit(count, tokens - left)

    def _direct(self, v: Vectors, weight_format: WeightFormat, operands: Operands, rows: Int, *, count: int) -> None:
        """`count` tokens times all rows; the rows that fill no tile one by one."""
        k, outputs = v.emitter, self._direct_tiles(weight_format)[count]
        whole, step = rows - rows % outputs, _block_columns(operands.columns)
        parts = [(k.integer(0), whole, outputs), (whole, rows, 1)]
        for first_row, end, height in parts if outputs > 1 else parts[:1]:
            tile = self._tile(Tile(weight_format=weight_format, tokens=count, outputs=height))
            with k.loop(first_row, end, height) as row, k.loop(0, operands.columns, step) as first:
                at, place = _from_row(operands, weight_format, row)
                tile(*_of_block(at, weight_format, first, step).arguments(), place, first)

    def _many(self, v: Vectors, weight_format: WeightFormat, operands: Operands, *rest: Int) -> None:
        tokens, rows, scratch = rest
        step = _block_columns(operands.columns)
        with v.emitter.loop(0, operands.columns, step) as first:
            block = _of_block(operands, weight_format, first, step)
            panel_bytes = block.columns * (PANEL_ROWS * F32_BYTES)
            _expand_all(v, weight_format, block, rows, scratch, panel_bytes)
            self._multiply_panels(v, attrs.evolve(block, w=scratch, w_stride=panel_bytes), tokens, rows, first)

    def _multiply_panels(self, v: Vectors, block: Operands, tokens: Int, rows: Int, continues: Int) -> None:
        """`block.w_stride` is from a panel to the next."""
        k = v.emitter
        panels, done = rows // PANEL_ROWS, k.integer(0)
        for count in _panel_tokens(self.module):
            end = done + (tokens - done) // count * count
            tile = Tile(weight_format=None, tokens=count, outputs=PANEL_ROWS)
            with k.loop(done, end, count) as token:
                with k.loop(0, panels) as panel:
                    at = attrs.evolve(block.at(token, panel * PANEL_ROWS), w=block.w + block.w_stride * panel)
                    self._tile(tile)(*at.arguments(), 0, continues)
                with k.loop(panels * PANEL_ROWS, rows) as row:
                    w = block.w + block.w_stride * panels + row % PANEL_ROWS * v.vector_bytes
                    at = attrs.evolve(block.at(token, row), w=w)
                    self._tile(attrs.evolve(tile, outputs=1))(*at.arguments(), 0, continues)
            done = end

    def _tile(self, tile: Tile) -> Function:
        if tile not in self._tiles:
            self._tiles[tile] = define_tile(self.module, tile)
        return self._tiles[tile]


def expand_row(v: Vectors, weight_format: WeightFormat, *arguments: Int) -> None:
    """Writes one row of a matrix as fp32. Arguments: w, w_stride (as for linear layers), row, columns, target."""
    w, w_stride, row, columns, target = arguments
    if _is_of_bytes(v.module, weight_format):
        expand_lane_row(v, weight_format, *arguments)
        return
    if not has_panels(weight_format):
        _expand_row(v, weight_format, w + w_stride * row, columns, target, distance=1)
        return
    panel = w + w_stride * (row // PANEL_ROWS)
    with v.emitter.loop(0, columns, MAX_BLOCK_COLUMNS) as first:
        at, count = panel + first // UNIT_COLUMNS * unit_bytes(weight_format), (columns - first).minimum(MAX_BLOCK_COLUMNS)
        _expand_panel(v, weight_format, at, count, row % PANEL_ROWS, target + first * F32_BYTES, rows=1)


def _is_of_bytes(module: VectorModule, weight_format: WeightFormat) -> bool:
    """Whether weights of this format lie for products of bytes."""
    return module.has_byte_products and has_panels(weight_format)


def _expand_all(v: Vectors, weight_format: WeightFormat, block: Operands, *arguments: Int) -> None:
    """Writes the rows of a block of columns as fp32, `PANEL_ROWS` of them vector by vector. Arguments: rows, target, bytes from
    the first vector of so many rows to that of the next."""
    k, (rows, target, distance) = v.emitter, arguments
    if has_panels(weight_format):
        with k.loop(0, (rows + (PANEL_ROWS - 1)) // PANEL_ROWS) as panel:
            w = block.w + block.w_stride * panel
            _expand_panel(v, weight_format, w, block.columns, k.integer(0), target + distance * panel, rows=PANEL_ROWS)
    else:
        with k.loop(0, rows) as row:
            to = target + row // PANEL_ROWS * distance + row % PANEL_ROWS * v.vector_bytes
            _expand_row(v, weight_format, block.w + block.w_stride * row, block.columns, to, distance=PANEL_ROWS)


def _expand_panel(v: Vectors, weight_format: WeightFormat, *arguments: Int, rows: int) -> None:
    """Writes the vectors of `rows` rows of a panel, those of the same columns side by side; at most a block of columns.

    Arguments: panel, columns, the first row's place, target.
    """
    panel, columns, place, target = arguments
    count = columns // UNIT_COLUMNS
    units = PanelUnits.of(v, weight_format, panel)
    with v.emitter.loop(0, count) as unit:
        to = target + unit * (UNIT_COLUMNS * F32_BYTES * rows)
        for row, parts in enumerate(units.read(v, unit, place, rows)):
            for part, weights in enumerate(parts):
                v.store(to + v.vector_bytes * (part * rows + row), weights)


def _expand_row(v: Vectors, weight_format: WeightFormat, *arguments: Int, distance: int) -> None:
    """Writes a row's vectors, each as many vectors as `distance` behind the one before. Arguments: row, columns, target."""
    row, columns, target = arguments
    with v.emitter.loop(0, columns, v.lanes) as column:
        weights = read_lanes(v, weight_format, row + column * weight_format.block_bytes)
        v.store(target + column * (F32_BYTES * distance), weights)


def _block_columns(columns: Int) -> Int:
    """Of all blocks but the last: whole units, as evenly as they go."""
    blocks = (columns + (MAX_BLOCK_COLUMNS - 1)) // MAX_BLOCK_COLUMNS
    units = blocks * UNIT_COLUMNS
    return (columns + units - 1) // units * UNIT_COLUMNS


def _of_block(operands: Operands, weight_format: WeightFormat, first: Int, step: Int) -> Operands:
    """The block of columns that begins with `first`."""
    unit, columns = (unit_bytes(weight_format), UNIT_COLUMNS) if has_panels(weight_format) else (weight_format.block_bytes, 1)
    return attrs.evolve(
        operands,
        x=operands.x + first * F32_BYTES,
        w=operands.w + first // columns * unit,
        columns=(operands.columns - first).minimum(step),
    )


def _from_row(operands: Operands, weight_format: WeightFormat, row: Int) -> tuple[Operands, Int]:
    """The operands from a weight row on, and the row's place in its panel, if it has one."""
    if not has_panels(weight_format):
        return operands.at(0, row), operands.w.emitter.integer(0)
    w = operands.w + operands.w_stride * (row // PANEL_ROWS)
    return attrs.evolve(operands.at(0, row), w=w), row % PANEL_ROWS


def _panel_tokens(module: VectorModule) -> Sequence[int]:
    """Tokens of the tiles, largest first: their sums and a panel's weights fit the registers; a token's values
    may come from the cache."""
    few = (3, 2, 1)
    return few if module.has_few_registers else (6, *few)
