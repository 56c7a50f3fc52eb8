"""Linear layers: some rows of a weight matrix, times the activations of all tokens of a step.

Must not know: models, how rows are shared out between threads.

Weights are expanded in registers, once for up to 4 tokens (8 where there are 32 registers), as they come from memory. Many
tokens would expand them again and again: they are expanded into a scratch that stays in the cache, and multiplied in register
tiles from there. Columns are taken in blocks, so that what a tile reads stays in a core's first cache; the blocks
depend on the number of columns alone.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import attrs

from layered_llm.runtime.matrices import WeightFormat
from layered_llm.runtime.simd.dot_tiles import PANEL_ROWS, Operands, Tile, define_tile
from layered_llm.runtime.simd.emitter import Function, Int
from layered_llm.runtime.simd.vectors import F32_BYTES, VectorModule, Vectors
from layered_llm.runtime.simd.weight_units import (
    MAX_BLOCK_COLUMNS,
    SCALES_BYTES,
    UNIT_COLUMNS,
    read_lanes,
    read_scales,
    read_unit,
)

LINEAR_PARAMETERS: Final = 10
_FEW_REGISTERS: Final = 16
_DIRECT_FEW: Final[Mapping[int, int]] = MappingProxyType({1: 4, 2: 4, 3: 4, 4: 2})
"""By tokens, as long as weights are expanded in registers: the weight rows of a tile."""
_DIRECT_MANY: Final[Mapping[int, int]] = MappingProxyType({1: 4, 2: 4, 3: 4, 4: 4, 5: 4, 6: 3, 7: 2, 8: 2})
"""The same with 32 registers."""
_DIRECT_ROUNDS: Final = 3
"""How often expanding weights in registers costs less than expanding them into the scratch once."""


def scratch_floats(rows: int, columns: int) -> int:
    """Fp32 numbers that a call needs."""
    return -(-rows // PANEL_ROWS) * PANEL_ROWS * min(columns, MAX_BLOCK_COLUMNS)


@attrs.define(kw_only=True)
class LinearKernels:
    """Generates the linear layers of one module, each function once."""

    module: VectorModule
    _tiles: dict[Tile, Function] = attrs.Factory(dict)

    def define(self, weight_format: WeightFormat) -> Function:
        """Multiplies tokens with weight rows of this format. The function's arguments, strides in bytes:

        x, x_stride ([tokens, columns]), w, w_stride ([rows, columns]), columns, y, y_stride ([tokens, rows]), tokens, rows,
        scratch (fp32, as many as `scratch_floats` says).
        """

        def emit(v: Vectors, *arguments: Int) -> None:
            operands, (tokens, rows, scratch) = Operands(*arguments[:7]), arguments[7:]
            most = max(self._direct_tiles) * _DIRECT_ROUNDS
            with v.emitter.when(tokens <= most):
                self._few(v, weight_format, operands, tokens, rows)
            with v.emitter.when(tokens > most):
                self._many(v, weight_format, operands, tokens, rows, scratch)

        return self.module.define(f"linear_{weight_format.label}", emit, LINEAR_PARAMETERS)

    @property
    def _direct_tiles(self) -> Mapping[int, int]:
        return _DIRECT_FEW if self.module.registers <= _FEW_REGISTERS else _DIRECT_MANY

    def _few(self, v: Vectors, weight_format: WeightFormat, operands: Operands, *rest: Int) -> None:
        tokens, rows = rest
        k, most = v.emitter, max(self._direct_tiles)
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
        k, outputs = v.emitter, self._direct_tiles[count]
        whole, step = rows - rows % outputs, _block_columns(operands.columns)
        for first_row, end, height in ((k.integer(0), whole, outputs), (whole, rows, 1)):
            tile = self._tile(Tile(weight_format=weight_format, tokens=count, outputs=height))
            with k.loop(first_row, end, height) as row, k.loop(0, operands.columns, step) as first:
                tile(*_of_block(operands.at(0, row), weight_format, first, step).arguments(), first)

    def _many(self, v: Vectors, weight_format: WeightFormat, operands: Operands, *rest: Int) -> None:
        tokens, rows, scratch = rest
        step = _block_columns(operands.columns)
        with v.emitter.loop(0, operands.columns, step) as first:
            block = _of_block(operands, weight_format, first, step)
            panel_bytes = block.columns * (PANEL_ROWS * F32_BYTES)
            with v.emitter.loop(0, rows) as row:
                target = scratch + row // PANEL_ROWS * panel_bytes + row % PANEL_ROWS * v.vector_bytes
                _expand(v, weight_format, block.w + block.w_stride * row, block.columns, target, distance=PANEL_ROWS)
            self._multiply_panels(v, attrs.evolve(block, w=scratch, w_stride=panel_bytes), tokens, rows, first)

    def _multiply_panels(self, v: Vectors, block: Operands, tokens: Int, rows: Int, continues: Int) -> None:
        """`block.w_stride` is from a panel to the next."""
        k = v.emitter
        panels, done = rows // PANEL_ROWS, k.integer(0)
        for count in _panel_tokens(self.module.registers):
            end = done + (tokens - done) // count * count
            tile = Tile(weight_format=None, tokens=count, outputs=PANEL_ROWS)
            with k.loop(done, end, count) as token:
                with k.loop(0, panels) as panel:
                    at = attrs.evolve(block.at(token, panel * PANEL_ROWS), w=block.w + block.w_stride * panel)
                    self._tile(tile)(*at.arguments(), continues)
                with k.loop(panels * PANEL_ROWS, rows) as row:
                    w = block.w + block.w_stride * panels + row % PANEL_ROWS * v.vector_bytes
                    at = attrs.evolve(block.at(token, row), w=w)
                    self._tile(attrs.evolve(tile, outputs=1))(*at.arguments(), continues)
            done = end

    def _tile(self, tile: Tile) -> Function:
        if tile not in self._tiles:
            self._tiles[tile] = define_tile(self.module, tile)
        return self._tiles[tile]


def expand_row(v: Vectors, weight_format: WeightFormat, source: Int, columns: Int, target: Int) -> None:
    """Writes one weight row as fp32."""
    with v.emitter.loop(0, columns, MAX_BLOCK_COLUMNS) as first:
        count = (columns - first).minimum(MAX_BLOCK_COLUMNS)
        at = source + first // weight_format.block_columns * weight_format.block_bytes
        _expand(v, weight_format, at, count, target + first * F32_BYTES, distance=1)


def _expand(v: Vectors, weight_format: WeightFormat, source: Int, columns: Int, target: Int, *, distance: int) -> None:
    """Writes a row's vectors, each as many vectors as `distance` behind the one before; at most a block of columns."""
    unit_bytes, units = weight_format.row_bytes(UNIT_COLUMNS), columns // UNIT_COLUMNS
    scales = read_scales(v, weight_format, source, units)
    with v.emitter.loop(0, units) as unit:
        weights_of = read_unit(v, weight_format, source + unit * unit_bytes, scales + unit * SCALES_BYTES)
        for part, weights in enumerate(weights_of):
            v.store(target + (unit * (F32_BYTES * UNIT_COLUMNS) + v.vector_bytes * part) * distance, weights)
    if weight_format.block_columns == 1:
        with v.emitter.loop(columns - columns % UNIT_COLUMNS, columns, v.lanes) as column:
            weights = read_lanes(v, weight_format, source + column * weight_format.block_bytes)
            v.store(target + column * (F32_BYTES * distance), weights)


def _block_columns(columns: Int) -> Int:
    """Of all blocks but the last: whole units, as evenly as they go."""
    blocks = (columns + (MAX_BLOCK_COLUMNS - 1)) // MAX_BLOCK_COLUMNS
    units = blocks * UNIT_COLUMNS
    return (columns + units - 1) // units * UNIT_COLUMNS


def _of_block(operands: Operands, weight_format: WeightFormat, first: Int, step: Int) -> Operands:
    """The block of columns that begins with `first`."""
    return attrs.evolve(
        operands,
        x=operands.x + first * F32_BYTES,
        w=operands.w + first // weight_format.block_columns * weight_format.block_bytes,
        columns=(operands.columns - first).minimum(step),
    )


def _panel_tokens(registers: int) -> Sequence[int]:
    """Tokens of the tiles, largest first: their sums and a panel's weights fit the registers; a token's values
    may come from the cache."""
    few = (3, 2, 1)
    return few if registers <= _FEW_REGISTERS else (6, *few)
