"""A weight matrix as its file holds it: the bytes of its rows, in a format whose numbers are known exactly.

Must not know: torch, files, models, what a matrix is for.

Formats are those of GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; block layouts: ggml-common.h). A row is a
whole number of blocks. F32, BF16 and F16 have blocks of one number. The blocks of 32 numbers begin with their fp16 scale `d`:

    Q8_0   d, 32 signed bytes q            number = d * q
    Q4_0   d, 16 bytes of two nibbles q    number = d * (q - 8)
    Q4_1   d, fp16 m, 16 bytes             number = d * q + m

Byte k of the 16 holds number k in its low nibble and number k + 16 in its high one. Little-endian, as the file is.
"""

import enum
from collections.abc import Sequence
from typing import Final, assert_never

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.device.step_inputs import Float32s

Bytes = NDArray[np.uint8]


class WeightFormat(enum.Enum):
    """What the bytes of a matrix mean."""

    F32 = ("F32", 1, 4)
    BF16 = ("BF16", 1, 2)
    F16 = ("F16", 1, 2)
    Q8_0 = ("Q8_0", 32, 34)
    Q4_0 = ("Q4_0", 32, 18)
    Q4_1 = ("Q4_1", 32, 20)

    def __init__(self, label: str, block_columns: int, block_bytes: int) -> None:
        self.label = label
        self.block_columns = block_columns
        self.block_bytes = block_bytes

    def row_bytes(self, columns: int) -> int:
        """What a row takes; `columns` must be whole blocks."""
        return columns // self.block_columns * self.block_bytes


@attrs.frozen
class Shard:
    """Which of the equal parts of a model that `size` ranks compute together is meant."""

    rank: int
    size: int

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise InvariantViolated(f"rank {self.rank} of {self.size}")

    def part(self, length: int) -> slice:
        """The rank's own `length` of what all ranks have together."""
        return slice(self.rank * length, (self.rank + 1) * length)


WHOLE: Final = Shard(0, 1)


class Split(enum.Enum):
    """What of a matrix is divided among ranks."""

    ROWS = enum.auto()
    """Outputs: each rank computes some of them."""
    COLUMNS = enum.auto()
    """Inputs: each rank has some of them, and the results are added."""


@attrs.frozen(kw_only=True, eq=False)
class WeightMatrix:
    """A matrix [rows, columns] of a linear layer: a row for each output, a column for each input."""

    format: WeightFormat
    rows: int
    columns: int
    data: Bytes
    """[rows, row_bytes], C-contiguous; perhaps a view of a mapped file, and so read-only and of any alignment."""

    def __attrs_post_init__(self) -> None:
        expected = (self.rows, self.format.row_bytes(self.columns))
        if self.columns % self.format.block_columns or self.data.shape != expected:
            raise InvariantViolated(f"{self.rows} x {self.columns} as {self.format.label} is not {self.data.shape} bytes")
        if self.data.dtype != np.uint8 or not self.data.flags.c_contiguous:
            raise InvariantViolated(f"a matrix of {self.data.dtype} with strides {self.data.strides}")

    def dequantized(self) -> Float32s:
        """All numbers, exactly, as fp32 [rows, columns] in memory of their own."""
        match self.format:
            case WeightFormat.F32:
                return self.data.view("<f4").astype(np.float32)
            case WeightFormat.BF16:
                return (self.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
            case WeightFormat.F16:
                return self.data.view("<f2").astype(np.float32)
            case WeightFormat.Q8_0:
                blocks = self._blocks()
                return self._joined(_scales(blocks, 0) * blocks[..., 2:].view(np.int8))
            case WeightFormat.Q4_0:
                blocks = self._blocks()
                return self._joined(_scales(blocks, 0) * (_nibbles(blocks[..., 2:]) - 8))
            case WeightFormat.Q4_1:
                blocks = self._blocks()
                return self._joined(_scales(blocks, 0) * _nibbles(blocks[..., 4:]) + _scales(blocks, 2))
            case _:
                assert_never(self.format)

    def with_rows(self, order: NDArray[np.int64]) -> "WeightMatrix":
        """A copy of the rows `order`, in this order."""
        return attrs.evolve(self, rows=len(order), data=self.data[order])

    def part(self, shard: Shard, split: Split) -> "WeightMatrix":
        """The equal part that a rank has: rows where they are, or a copy of columns, which must be whole blocks."""
        match split:
            case Split.ROWS:
                rows = self.rows // shard.size
                data = self.data[shard.part(rows)]
                return attrs.evolve(self, rows=rows, data=data.copy() if data.flags.writeable else data)
            case Split.COLUMNS:
                columns = self.columns // shard.size
                data = np.ascontiguousarray(self.data[:, shard.part(self.format.row_bytes(columns))])
                return attrs.evolve(self, columns=columns, data=data)
            case _:
                assert_never(split)

    def _blocks(self) -> Bytes:
        return self.data.reshape(self.rows, -1, self.format.block_bytes)

    def _joined(self, blocks: Float32s) -> Float32s:
        return blocks.reshape(self.rows, self.columns)


def merged(matrices: Sequence[WeightMatrix]) -> WeightMatrix:
    """`matrices`, of one format and width, one below the other; a single one stays where it is."""
    if len(matrices) == 1:
        return matrices[0]
    first = matrices[0]
    if any((matrix.format, matrix.columns) != (first.format, first.columns) for matrix in matrices):
        raise InvariantViolated("matrices of several formats or widths cannot be merged")
    data = np.concatenate([matrix.data for matrix in matrices])
    return attrs.evolve(first, rows=len(data), data=data)


def encoded(values: Float32s, weight_format: WeightFormat) -> WeightMatrix:
    """`values` [rows, columns] in a format that keeps one number or one scale for each block: all but the 4-bit ones.

    Each number becomes the nearest one, ties to even; beyond the format's range, infinity. Q8_0 scales the largest number of a
    block to 127, as llama.cpp does.
    """
    rows, columns = values.shape
    match weight_format:
        case WeightFormat.F32:
            data = np.ascontiguousarray(values, "<f4").view(np.uint8)
        case WeightFormat.BF16:
            data = _bfloat16s(values).astype("<u2").view(np.uint8)
        case WeightFormat.F16:
            with np.errstate(over="ignore"):
                data = values.astype("<f2").view(np.uint8)
        case WeightFormat.Q8_0:
            data = _int8_blocks(values)
        case WeightFormat.Q4_0 | WeightFormat.Q4_1:
            raise InvariantViolated("4-bit blocks are read, never made")
        case _:
            assert_never(weight_format)
    return WeightMatrix(format=weight_format, rows=rows, columns=columns, data=data)


def _scales(blocks: Bytes, at: int) -> Float32s:
    """The fp16 number at byte `at` of each block: [rows, blocks, 1]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Float32s:
    return np.concatenate((packed & 0x0F, packed >> 4), axis=-1).astype(np.float32)


def _bfloat16s(values: Float32s) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    quiet = bits >> 16 | 0x40
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def _int8_blocks(values: Float32s) -> Bytes:
    blocks = np.ascontiguousarray(values, np.float32).reshape(len(values), -1, WeightFormat.Q8_0.block_columns)
    scales = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):  # a block that holds NaN has NaN as its scale, whatever its codes
        inverse = np.where(scales == 0, np.float32(0), 1 / scales)
        scaled = blocks * inverse
        quants = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8)  # halves away from zero
    with np.errstate(over="ignore"):
        halves = scales.astype("<f2").view(np.uint8)
    return np.concatenate((halves, quants.view(np.uint8)), axis=-1).reshape(len(values), -1)
