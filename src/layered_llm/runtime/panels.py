"""Weight matrices of quantized blocks as the generated kernels read them: the blocks of a few rows side by side.

Must not know: how they are computed with, models, where the memory comes from.

A panel is `PANEL_ROWS` rows, the last one filled up with zeros. It has a unit for each block of columns:

    fp16 scales   of the first row's block, then the second's … (Q4_1: scale and lowest number of each)
    codes         Q8_0: 32 bytes of the first row, then of the second …
                  4-bit: byte k of each row's 16, for k = 0, 1 …

so that a panel is one stretch of memory that is read from its begin to its end, and 16 words of 4 bytes hold the 4-bit codes of
4 blocks. It takes as many bytes as its rows, and has their numbers.
"""

from collections.abc import Callable
from typing import Final

import attrs
import numpy as np

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.matrices import Bytes, Float32s, WeightFormat, WeightMatrix

PANEL_ROWS: Final = 4
SCALE_BYTES: Final = 2


@attrs.frozen(kw_only=True, eq=False)
class PanelMatrix:
    """A matrix [rows, columns] of a format with blocks."""

    format: WeightFormat
    rows: int
    columns: int
    data: Bytes
    """[panels, bytes of a panel], C-contiguous."""

    def __attrs_post_init__(self) -> None:
        expected = (-(-self.rows // PANEL_ROWS), PANEL_ROWS * self.format.row_bytes(self.columns))
        if not has_panels(self.format) or self.columns % self.format.block_columns or self.data.shape != expected:
            raise InvariantViolated(
                f"{self.rows} x {self.columns} as {self.format.label} is no panels of {self.data.shape} bytes"
            )
        if self.data.dtype != np.uint8 or not self.data.flags.c_contiguous:
            raise InvariantViolated(f"panels of {self.data.dtype} with strides {self.data.strides}")

    @classmethod
    def of(cls, matrix: WeightMatrix, room: Callable[[int], Bytes]) -> "PanelMatrix":
        """A copy of `matrix`, in memory of so many bytes that `room` gives."""
        panels, panel_bytes = -(-matrix.rows // PANEL_ROWS), PANEL_ROWS * matrix.data.shape[1]
        data = room(panels * panel_bytes).reshape(panels, panel_bytes)
        result = cls(format=matrix.format, rows=matrix.rows, columns=matrix.columns, data=data)
        whole = matrix.rows // PANEL_ROWS
        result._fill(0, matrix.data[: whole * PANEL_ROWS])
        if whole < panels:
            last = np.zeros((PANEL_ROWS, matrix.data.shape[1]), np.uint8)
            last[: matrix.rows % PANEL_ROWS] = matrix.data[whole * PANEL_ROWS :]
            result._fill(whole, last)
        return result

    @property
    def _units(self) -> int:
        return self.columns // self.format.block_columns

    def unpacked(self) -> WeightMatrix:
        """The rows, one behind the other, in memory of their own."""
        rows = np.empty((len(self.data), PANEL_ROWS, self._units, self.format.block_bytes), np.uint8)
        scales, codes = self._parts(self.data)
        rows[..., : scales.shape[-1]] = scales.swapaxes(1, 2)
        rows[..., scales.shape[-1] :] = codes.swapaxes(1, 2)
        data = rows.reshape(len(self.data) * PANEL_ROWS, -1)[: self.rows]
        return WeightMatrix(format=self.format, rows=self.rows, columns=self.columns, data=data)

    def dequantized(self) -> Float32s:
        """All numbers, exactly, as fp32 [rows, columns]."""
        return self.unpacked().dequantized()

    def _fill(self, first: int, rows: Bytes) -> None:
        blocks = rows.reshape(-1, PANEL_ROWS, self._units, self.format.block_bytes)
        scales, codes = self._parts(self.data[first : first + len(blocks)])
        scales[:] = blocks[..., : scales.shape[-1]].swapaxes(1, 2)
        codes[:] = blocks[..., scales.shape[-1] :].swapaxes(1, 2)

    def _parts(self, panels: Bytes) -> tuple[Bytes, Bytes]:
        """Views of the scales and of the codes: [panels, units, rows, bytes of a block]."""
        scale_bytes = scales_of(self.format) * SCALE_BYTES
        shape = (len(panels), self._units, PANEL_ROWS)
        units = panels.reshape(*shape[:2], PANEL_ROWS * self.format.block_bytes)
        scales, codes = np.split(units, [PANEL_ROWS * scale_bytes], axis=-1)
        code_bytes = self.format.block_bytes - scale_bytes
        if _is_nibbles(self.format):
            codes = codes.reshape(*shape[:2], code_bytes, PANEL_ROWS).swapaxes(2, 3)
        return scales.reshape(*shape, scale_bytes), codes.reshape(*shape, code_bytes)


Matrix = WeightMatrix | PanelMatrix


def in_panels(matrix: WeightMatrix, room: Callable[[int], Bytes]) -> Matrix:
    """A matrix as the generated kernels read it; a copy, in memory that `room` gives, where its format has blocks."""
    return PanelMatrix.of(matrix, room) if has_panels(matrix.format) else matrix


def has_panels(weight_format: WeightFormat) -> bool:
    """Whether the format has blocks, and so is laid out in panels for the generated kernels."""
    return weight_format.block_columns > 1


def scales_of(weight_format: WeightFormat) -> int:
    """Fp16 numbers that a block begins with."""
    match weight_format:
        case WeightFormat.Q4_1:
            return 2
        case WeightFormat.Q4_0 | WeightFormat.Q8_0:
            return 1
        case _:
            raise InvariantViolated(f"{weight_format.label} has no blocks")


def _is_nibbles(weight_format: WeightFormat) -> bool:
    """Whether a byte of a block has two codes."""
    return weight_format in {WeightFormat.Q4_0, WeightFormat.Q4_1}
