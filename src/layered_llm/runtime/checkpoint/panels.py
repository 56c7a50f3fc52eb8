"""Weight matrices of quantized blocks as the generated kernels read them: the blocks of a few rows side by side.

Must not know: how they are computed with, models, where the memory comes from.

A panel is as many rows as its layout says, the last one filled up with zeros. It has a unit for each block of columns:

    fp16 scales   of all rows; Q4_1: then the lowest number of all rows
    codes         the first few bytes of each row's block, then the next few of each …

so that a panel is one stretch of memory that is read from its begin to its end. It takes as many bytes as its rows, and has
their numbers. There are two layouts, for the two ways to multiply:

    for products of fp32 numbers   4 rows; 32 bytes of Q8_0 at a time, one of 4 bits: 16 words hold the codes of 4 blocks
    for products of bytes          a row for each number of a vector, 4 bytes at a time; those of Q8_0 are unsigned: 128 more
"""

from collections.abc import Callable
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.checkpoint.matrices import Bytes, WeightFormat, WeightMatrix
from layered_llm.runtime.device.step_inputs import Float32s

PANEL_ROWS: Final = 4
"""Of the layout for products of fp32 numbers."""
SCALE_BYTES: Final = 2
CODE_WORD_BYTES: Final = 4
"""Codes of a row that lie side by side for products of bytes."""


@attrs.frozen(kw_only=True)
class PanelLayout:
    """How the rows of a panel lie beside each other."""

    rows: int
    nibble_bytes: int
    """Bytes of 4-bit codes of a row that lie side by side."""
    byte_bytes: int
    """The same of 8-bit codes."""
    is_for_bytes: bool
    """For products of bytes."""


FLOAT_PANELS: Final = PanelLayout(
    rows=PANEL_ROWS, nibble_bytes=1, byte_bytes=WeightFormat.Q8_0.block_columns, is_for_bytes=False
)
_SIGN_BIT: Final = 0x80
_FILLED_PANELS: Final = 64
"""At once: what is copied on the way stays in a cache."""


def byte_panels(lanes: int) -> PanelLayout:
    """For vectors of so many numbers of 4 bytes."""
    return PanelLayout(rows=lanes, nibble_bytes=CODE_WORD_BYTES, byte_bytes=CODE_WORD_BYTES, is_for_bytes=True)


@attrs.frozen(kw_only=True, eq=False)
class PanelMatrix:
    """A matrix [rows, columns] of a format with blocks."""

    format: WeightFormat
    layout: PanelLayout
    rows: int
    columns: int
    data: Bytes
    """[panels, bytes of a panel], C-contiguous."""

    def __attrs_post_init__(self) -> None:
        height = self.layout.rows
        expected = (-(-self.rows // height), height * self.format.row_bytes(self.columns))
        if not has_panels(self.format) or self.columns % self.format.block_columns or self.data.shape != expected:
            raise InvariantViolated(
                f"{self.rows} x {self.columns} as {self.format.label} is no panels of {self.data.shape} bytes"
            )
        if self.data.dtype != np.uint8 or not self.data.flags.c_contiguous:
            raise InvariantViolated(f"panels of {self.data.dtype} with strides {self.data.strides}")

    @classmethod
    def of(cls, matrix: WeightMatrix, layout: PanelLayout, room: Callable[[int], Bytes]) -> "PanelMatrix":
        """A copy of `matrix`, in memory of so many bytes that `room` gives."""
        height = layout.rows
        panels, panel_bytes = -(-matrix.rows // height), height * matrix.data.shape[1]
        data = room(panels * panel_bytes).reshape(panels, panel_bytes)
        result = cls(format=matrix.format, layout=layout, rows=matrix.rows, columns=matrix.columns, data=data)
        whole = matrix.rows // height
        for first in range(0, whole, _FILLED_PANELS):
            result._fill(first, matrix.data[first * height : min(first + _FILLED_PANELS, whole) * height])
        if whole < panels:
            last = np.zeros((height, matrix.data.shape[1]), np.uint8)
            last[: matrix.rows % height] = matrix.data[whole * height :]
            result._fill(whole, last)
        return result

    def unpacked(self) -> WeightMatrix:
        """The rows, one behind the other, in memory of their own."""
        rows = np.empty((len(self.data), self.layout.rows, self._units, self.format.block_bytes), np.uint8)
        scales, codes = (np.ascontiguousarray(part).view(np.uint8) for part in self._parts(self.data))
        rows[..., : self._scale_bytes] = scales
        rows[..., self._scale_bytes :] = codes ^ self._flipped
        data = rows.reshape(len(self.data) * self.layout.rows, -1)[: self.rows]
        return WeightMatrix(format=self.format, rows=self.rows, columns=self.columns, data=data)

    def dequantized(self) -> Float32s:
        """All numbers, exactly, as fp32 [rows, columns]."""
        return self.unpacked().dequantized()

    @property
    def _units(self) -> int:
        return self.columns // self.format.block_columns

    @property
    def _scale_bytes(self) -> int:
        return scales_of(self.format) * SCALE_BYTES

    @property
    def _flipped(self) -> int:
        """Bits of each code that lie here as they are not in the file."""
        return _SIGN_BIT if self.layout.is_for_bytes and not is_nibbles(self.format) else 0

    def _fill(self, first: int, rows: Bytes) -> None:
        blocks = rows.reshape(-1, self.layout.rows, self._units, self.format.block_bytes)
        scales, codes = self._parts(self.data[first : first + len(blocks)])
        scales[:] = np.ascontiguousarray(blocks[..., : self._scale_bytes]).view(scales.dtype)
        own_codes = np.ascontiguousarray(blocks[..., self._scale_bytes :])
        codes[:] = (own_codes ^ self._flipped if self._flipped else own_codes).view(codes.dtype)

    def _parts(self, panels: Bytes) -> tuple[NDArray[Any], NDArray[Any]]:
        """Views of the scales and of the codes as words of what lies side by side: [panels, rows, units, words of a block]."""
        height = self.layout.rows
        word_bytes = self.layout.nibble_bytes if is_nibbles(self.format) else self.layout.byte_bytes
        units = panels.reshape(len(panels), self._units, height * self.format.block_bytes)
        scales, codes = np.split(units, [height * self._scale_bytes], axis=-1)
        words = (scales.view(_word_type(SCALE_BYTES)), codes.view(_word_type(word_bytes)))
        scales, codes = (each.reshape(*units.shape[:2], each.shape[2] // height, height) for each in words)
        return scales.transpose(0, 3, 1, 2), codes.transpose(0, 3, 1, 2)


Matrix = WeightMatrix | PanelMatrix


def in_panels(matrix: WeightMatrix, layout: PanelLayout, room: Callable[[int], Bytes]) -> Matrix:
    """A matrix as the generated kernels read it; a copy, in memory that `room` gives, where its format has blocks."""
    return PanelMatrix.of(matrix, layout, room) if has_panels(matrix.format) else matrix


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


def _word_type(size_bytes: int) -> str:
    """Of numpy, which copies its integers fastest."""
    return f"u{size_bytes}" if size_bytes <= CODE_WORD_BYTES else f"V{size_bytes}"


def is_nibbles(weight_format: WeightFormat) -> bool:
    """Whether a byte of a block has two codes."""
    return weight_format in {WeightFormat.Q4_0, WeightFormat.Q4_1}
