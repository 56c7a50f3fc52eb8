"""A GGUF file's metadata and table of tensors; the file is mapped, and nothing of it is read that nobody asks for.

Must not know: models, tokenizers, what a key or a tensor means.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The library `gguf` makes a
Python object of every token and needs seconds to open a file; here a value is only stepped over until it is asked for.

Invariant: all that the file says of positions and sizes is checked against its length when it is opened, so that whoever reads
a tensor of an open file reads inside of it.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs

from layered_llm.formats.untrusted_files import UnreadableFile, map_file

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MOST_DIMENSIONS: Final = 4
_DEFAULT_ALIGNMENT: Final = 32
_NAME_SHOWN: Final = 80
_MOST_HEADER_BYTES: Final = 1 << 28
_MOST_FIELDS: Final = 1 << 16
_MOST_TENSORS: Final = 1 << 17
_MOST_ELEMENTS: Final = 1 << 22
"""Of an array. A vocabulary of 262,144 tokens takes 6 MB and an array of half a million merges; a file with holes may claim to
have any size at no cost."""
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_NUMBERS: Final[Mapping[int, str]] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)
"""struct's letter for each type of a number in the metadata."""
_STRING: Final = 8
_ARRAY: Final = 9


class GgufError(Exception):
    """The file is no GGUF file that can be read; one line that names the file and what is wrong."""


@attrs.frozen
class TensorType:
    """How a tensor's numbers are stored: in blocks of so many numbers and bytes."""

    name: str
    block_numbers: int
    block_bytes: int


TENSOR_TYPES: Final[Mapping[int, TensorType]] = MappingProxyType(
    {
        0: TensorType("F32", 1, 4),
        1: TensorType("F16", 1, 2),
        2: TensorType("Q4_0", 32, 18),
        3: TensorType("Q4_1", 32, 20),
        6: TensorType("Q5_0", 32, 22),
        7: TensorType("Q5_1", 32, 24),
        8: TensorType("Q8_0", 32, 34),
        10: TensorType("Q2_K", 256, 84),
        11: TensorType("Q3_K", 256, 110),
        12: TensorType("Q4_K", 256, 144),
        13: TensorType("Q5_K", 256, 176),
        14: TensorType("Q6_K", 256, 210),
        16: TensorType("IQ2_XXS", 256, 66),
        17: TensorType("IQ2_XS", 256, 74),
        18: TensorType("IQ3_XXS", 256, 98),
        19: TensorType("IQ1_S", 256, 50),
        20: TensorType("IQ4_NL", 32, 18),
        21: TensorType("IQ3_S", 256, 110),
        22: TensorType("IQ2_S", 256, 82),
        23: TensorType("IQ4_XS", 256, 136),
        29: TensorType("IQ1_M", 256, 56),
        30: TensorType("BF16", 1, 2),
        34: TensorType("TQ1_0", 256, 54),
        35: TensorType("TQ2_0", 256, 66),
        39: TensorType("MXFP4", 32, 17),
    }
)
"""By the number that stands for it in a file (ggml.h, `enum ggml_type`)."""


@attrs.frozen(kw_only=True)
class GgufTensor:
    """Where a tensor lies."""

    type: TensorType
    shape: tuple[int, ...]
    """Rows first: the reverse of the file's order."""
    begin: int
    """Its first byte, counted from the file's first."""
    size_bytes: int


@attrs.frozen
class _Value:
    """A value that was stepped over."""

    kind: int
    begin: int


@attrs.frozen(eq=False)
class GgufFile:
    """An open file."""

    path: Path
    mapping: mmap.mmap
    _fields: Mapping[str, _Value]
    tensors: Mapping[str, GgufTensor]
    """By name, in the file's order."""

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Raises GgufError for a file that is missing, cut off, contradicts itself, or is of another format."""
        try:
            mapping = map_file(path)
        except UnreadableFile as error:
            raise GgufError(str(error)) from error
        try:
            cursor = _Cursor(mapping, 0)
            tensor_count, field_count = _counts(cursor)
            fields = _fields(cursor, field_count)
            found = cls(path, mapping, fields, {})
            return attrs.evolve(found, tensors=_tensors(cursor, tensor_count, found._alignment()))
        except _Malformed as error:
            raise GgufError(f"{path} is not a readable GGUF file: {error}") from error

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._fields)

    def get(self, key: str) -> Any:
        """The value of `key` as str, int, float, bool or a list of one of them; None where the file has no such key.

        Raises GgufError for text that is not UTF-8.
        """
        field = self._fields.get(key)
        if field is None:
            return None
        try:
            return _Cursor(self.mapping, field.begin).value(field.kind)
        except _Malformed as error:
            raise GgufError(f"{self.path}: {key}: {error}") from error

    def _alignment(self) -> int:
        value = self.get("general.alignment")
        alignment = _DEFAULT_ALIGNMENT if value is None else value
        if not isinstance(alignment, int) or alignment < 1 or alignment % 8:
            raise _Malformed(f"general.alignment is {value!r}, which is no positive multiple of 8")
        return alignment


class _Malformed(Exception):  # noqa: N818 - states what was found
    """What is wrong, without the file's name."""


@attrs.define
class _Cursor:
    """A position in the file. What would lie beyond its end raises _Malformed."""

    data: mmap.mmap
    position: int

    def u32(self) -> int:
        return self._number(_U32)

    def u64(self) -> int:
        return self._number(_U64)

    def name(self) -> str:
        """Text that may stand in a message of one line."""
        name = self.string()
        if not name.isprintable():
            raise _Malformed(f"the name {name[:_NAME_SHOWN]!r} cannot be printed")
        return name

    def string(self) -> str:
        try:
            return self._take(self.u64()).decode()
        except UnicodeDecodeError as error:
            raise _Malformed(f"text before byte {self.position} is not UTF-8") from error

    def value(self, kind: int) -> Any:
        """The value here."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            letter = _letter(kind)
            return struct.unpack("<" + letter, self._take(struct.calcsize("<" + letter)))[0]
        kind, count = self._array()
        if kind == _STRING:
            return self._strings(count)
        letter = _letter(kind)
        return list(struct.unpack(f"<{count}{letter}", self._take(count * struct.calcsize("<" + letter))))

    def step_over(self, kind: int) -> None:
        """Moves behind the value here."""
        if kind == _STRING:
            self._move(self.u64())
            return
        count = 1
        if kind == _ARRAY:
            kind, count = self._array()
        if kind == _STRING:
            self._step_over_strings(count)
        else:
            self._move(count * struct.calcsize("<" + _letter(kind)))

    def _array(self) -> tuple[int, int]:
        kind, count = self.u32(), self.u64()
        if count > _MOST_ELEMENTS:
            raise _Malformed(f"an array of {count} elements; at most {_MOST_ELEMENTS} are read")
        return kind, count

    def _step_over_strings(self, count: int) -> None:
        """There are hundreds of thousands in a file, so the loop is bare."""
        data, length, position = self.data, _U64.unpack_from, self.position
        try:
            for _ in range(count):
                position += 8 + length(data, position)[0]
        except (struct.error, OverflowError):  # behind the end, and behind what a position can be
            raise _cut_off(len(data)) from None
        self._move(position - self.position)

    def _strings(self, count: int) -> list[str]:
        """As bare a loop, over a copy: a slice of bytes is taken twice as fast as one of a mapping."""
        begin = self.position
        self._step_over_strings(count)
        data, length, position = self.data[begin : self.position], _U64.unpack_from, 0
        strings: list[str] = []
        try:
            for _ in range(count):
                first = position + 8
                position = first + length(data, position)[0]
                strings.append(data[first:position].decode())
        except UnicodeDecodeError as error:
            raise _Malformed(f"text before byte {begin + position} is not UTF-8") from error
        return strings

    def _number(self, layout: struct.Struct) -> int:
        number: int = layout.unpack(self._take(layout.size))[0]
        return number

    def _take(self, size_bytes: int) -> bytes:
        begin = self.position
        self._move(size_bytes)
        return self.data[begin : self.position]

    def _move(self, size_bytes: int) -> None:
        if size_bytes > len(self.data) - self.position:
            raise _cut_off(len(self.data))
        self.position += size_bytes
        if self.position > _MOST_HEADER_BYTES:
            raise _Malformed(f"its header has more than {_MOST_HEADER_BYTES} bytes, which is the most that is read")


def _cut_off(size_bytes: int) -> _Malformed:
    return _Malformed(f"its header goes on behind its end at byte {size_bytes}; it is cut off, or broken")


def _letter(kind: int) -> str:
    if kind not in _NUMBERS:
        raise _Malformed(f"a value of the unknown type {kind}" if kind != _ARRAY else "an array of arrays")
    return _NUMBERS[kind]


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """How many tensors and how many fields of metadata."""
    if cursor.u32() != int.from_bytes(MAGIC, "little"):
        raise _Malformed("it does not begin with the letters GGUF")
    version = cursor.u32()
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise _Malformed("it is big-endian" if swapped in _VERSIONS else f"version {version} is not supported, only 2 and 3")
    tensors, fields = cursor.u64(), cursor.u64()
    if tensors > _MOST_TENSORS or fields > _MOST_FIELDS:
        raise _Malformed(
            f"it says that it has {tensors} tensors and {fields} fields; at most {_MOST_TENSORS} and {_MOST_FIELDS} are read"
        )
    return tensors, fields


def _fields(cursor: _Cursor, count: int) -> dict[str, _Value]:
    fields: dict[str, _Value] = {}
    for _ in range(count):
        key, kind = cursor.name(), cursor.u32()
        if key in fields:
            raise _Malformed(f"it has {key} twice")
        fields[key] = _Value(kind, cursor.position)
        cursor.step_over(kind)
    return fields


def _tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    entries: dict[str, tuple[TensorType, tuple[int, ...], int]] = {}
    for _ in range(count):
        name, dimensions = cursor.name(), cursor.u32()
        if name in entries:
            raise _Malformed(f"it has the tensor {name} twice")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise _Malformed(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(reversed([cursor.u64() for _ in range(dimensions)]))
        entries[name] = (_tensor_type(name, cursor.u32()), shape, cursor.u64())
        if entries[name][-1] % alignment:
            raise _Malformed(f"tensor {name} begins at {entries[name][-1]}, which is no multiple of the file's {alignment}")
    data_begin = -(-cursor.position // alignment) * alignment
    placed = {name: _placed(name, kind, shape, data_begin + offset) for name, (kind, shape, offset) in entries.items()}
    for name, tensor in placed.items():
        end, file_bytes = tensor.begin + tensor.size_bytes, len(cursor.data)
        if end > file_bytes:
            raise _Malformed(f"tensor {name} ends at byte {end}, but the file at {file_bytes}; it is cut off, or broken")
    _refuse_overlaps(placed)
    return placed


def _refuse_overlaps(tensors: Mapping[str, GgufTensor]) -> None:
    in_order = sorted(tensors, key=lambda name: tensors[name].begin)
    for name, behind in pairwise(in_order):
        if tensors[name].begin + tensors[name].size_bytes > tensors[behind].begin:
            raise _Malformed(f"tensor {behind} begins within tensor {name}")


def _tensor_type(name: str, number: int) -> TensorType:
    if number not in TENSOR_TYPES:
        raise _Malformed(f"tensor {name} is of the unknown type {number}")
    return TENSOR_TYPES[number]


def _placed(name: str, kind: TensorType, shape: tuple[int, ...], begin: int) -> GgufTensor:
    if 0 in shape or shape[-1] % kind.block_numbers:
        raise _Malformed(f"tensor {name} of shape {list(shape)} has no whole {kind.name} blocks of {kind.block_numbers}")
    size_bytes = math.prod(shape) // kind.block_numbers * kind.block_bytes
    return GgufTensor(type=kind, shape=shape, begin=begin, size_bytes=size_bytes)
