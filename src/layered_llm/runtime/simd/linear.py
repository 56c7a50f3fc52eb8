"""Linear layers: some rows of a weight matrix, times the activations of all tokens of a step.

Must not know: models, how rows are shared out between threads.

Up to 4 tokens (8 where there are 32 registers), weights are expanded in registers, once for all tokens, as they come from
memory. More tokens would expand them again and again: rows are expanded into a scratch that stays in the cache, and multiplied
in register tiles from there.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import attrs

from layered_llm.runtime.matrices import WeightFormat
from layered_llm.runtime.simd.dot_tiles import Operands, Tile, define_tile
from layered_llm.runtime.simd.emitter import CodeModule, Function, Int
from layered_llm.runtime.simd.vectors import F32_BYTES, LANES, VECTOR_BYTES, Vectors, define
from layered_llm.runtime.simd.weight_units import UNIT_COLUMNS, read_lanes, read_unit

LINEAR_PARAMETERS: Final = 10
_FEW_REGISTERS: Final = 16
_DIRECT_FEW: Final[Mapping[int, int]] = MappingProxyType({1: 4, 2: 4, 3: 4, 4: 2})
"""By tokens, as long as weights are expanded in registers: the weight rows of a tile."""
_DIRECT_MANY: Final[Mapping[int, int]] = MappingProxyType({1: 4, 2: 4, 3: 4, 4: 4, 5: 4, 6: 3, 7: 2, 8: 2})
"""The same with 32 registers."""


@attrs.define(kw_only=True)
class LinearKernels:
    """Generates the linear layers of one module, each function once."""

    module: CodeModule
    registers: int
    """Vector registers of the machine: 16, or 32 with AVX-512."""
    _tiles: dict[Tile, Function] = attrs.Factory(dict)

    def define(self, weight_format: WeightFormat) -> Function:
        """Multiplies tokens with weight rows of this format. The function's arguments, strides in bytes:

        x, x_stride ([tokens, columns]), w, w_stride ([rows, columns]), columns, y, y_stride ([tokens, rows]), tokens, rows,
        scratch (fp32 [rows, columns]).
        """

        def emit(v: Vectors, *arguments: Int) -> None:
            operands, (tokens, rows, scratch) = Operands(*arguments[:7]), arguments[7:]
            direct = _DIRECT_FEW if self.registers <= _FEW_REGISTERS else _DIRECT_MANY
            for count, outputs in direct.items():
                with v.emitter.when(tokens.equals(count)):
                    tile = Tile(weight_format=weight_format, tokens=count, outputs=outputs, has_prefetch=True)
                    self._across(v, tile, operands, rows)
            with v.emitter.when(tokens > max(direct)):
                self._many(v, weight_format, operands, tokens, rows, scratch)

        return define(self.module, f"linear_{weight_format.label}", emit, LINEAR_PARAMETERS)

    def _many(self, v: Vectors, weight_format: WeightFormat, operands: Operands, *rest: Int) -> None:
        tokens, rows, scratch = rest
        if weight_format is not WeightFormat.F32:
            with v.emitter.loop(0, rows) as row:
                target = scratch + row * operands.columns * F32_BYTES
                expand_row(v, weight_format, operands.w + operands.w_stride * row, operands.columns, target)
            operands = attrs.evolve(operands, w=scratch, w_stride=operands.columns * F32_BYTES)
        done = v.emitter.integer(0)
        for count, outputs in _panel_tiles(self.registers):
            tile = Tile(weight_format=WeightFormat.F32, tokens=count, outputs=outputs, has_prefetch=False)
            end = done + (tokens - done) // count * count
            with v.emitter.loop(done, end, count) as token:
                self._across(v, tile, operands.at(token, 0), rows)
            done = end

    def _across(self, v: Vectors, tile: Tile, operands: Operands, rows: Int) -> None:
        """The tile's tokens times all rows; the rows that fill no tile one by one."""
        k = v.emitter
        whole = rows - rows % tile.outputs
        with k.loop(0, whole, tile.outputs) as row:
            self._tile(tile)(*operands.at(0, row).arguments())
        with k.loop(whole, rows) as row:
            self._tile(attrs.evolve(tile, outputs=1))(*operands.at(0, row).arguments())

    def _tile(self, tile: Tile) -> Function:
        if tile not in self._tiles:
            self._tiles[tile] = define_tile(self.module, tile)
        return self._tiles[tile]


def expand_row(v: Vectors, weight_format: WeightFormat, source: Int, columns: Int, target: Int) -> None:
    """Writes one weight row as fp32."""
    unit_bytes = weight_format.row_bytes(UNIT_COLUMNS)
    with v.emitter.loop(0, columns // UNIT_COLUMNS) as unit:
        for part, weights in enumerate(read_unit(v, weight_format, source + unit * unit_bytes)):
            v.store(target + unit * (F32_BYTES * UNIT_COLUMNS) + VECTOR_BYTES * part, weights)
    if weight_format.block_columns == 1:
        with v.emitter.loop(columns - columns % UNIT_COLUMNS, columns, LANES) as column:
            v.store(target + column * F32_BYTES, read_lanes(v, weight_format, source + column * weight_format.block_bytes))


def _panel_tiles(registers: int) -> Sequence[tuple[int, int]]:
    """Tokens and outputs of the tiles, largest first: their sums, the weights and one token's values fit the registers."""
    few = [(3, 4), (2, 4), (1, 4)]
    return few if registers <= _FEW_REGISTERS else [(6, 4), *few]
