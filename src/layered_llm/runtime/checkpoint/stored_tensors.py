"""A checkpoint's tensors as they lie in mapped files, by the names that Hugging Face gives them.

Must not know: file formats, models, what a tensor is for.
"""

import mmap
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import numpy as np

from layered_llm.runtime.checkpoint.matrices import Bytes, WeightFormat, WeightMatrix
from layered_llm.runtime.device.device import DeviceError

_NAMES_SHOWN: Final = 8
_FORMATS: Final = {each.label: each for each in WeightFormat}


class CheckpointError(DeviceError):
    """The checkpoint is missing, broken, or not that of the configured model."""


@attrs.frozen(kw_only=True, eq=False)
class StoredTensor:
    """One tensor, not read yet."""

    type_name: str
    shape: tuple[int, ...]
    read: Callable[[], WeightMatrix]
    """All dimensions but the last are the matrix's rows. Raises CheckpointError where the type cannot be read."""
    forget: Callable[[], None]
    """Gives the memory of the file's pages back, for tensors that were copied; they are read again when they are used again."""


@attrs.frozen(eq=False)
class MappedRange:
    """Some bytes of a mapped file."""

    _mapping: mmap.mmap
    _begin: int
    _size_bytes: int

    def bytes(self) -> Bytes:
        """A view that cannot be written."""
        return np.frombuffer(self._mapping, np.uint8, self._size_bytes, self._begin)

    def matrix(self, weight_format: WeightFormat, shape: tuple[int, ...]) -> WeightMatrix:
        """A view as a matrix; the range has the bytes of this shape."""
        columns = shape[-1]
        data = self.bytes().reshape(-1, weight_format.row_bytes(columns))
        return WeightMatrix(format=weight_format, rows=len(data), columns=columns, data=data)

    def forget(self) -> None:
        """For the whole pages among the bytes."""
        first = -(-self._begin // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (self._begin + self._size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < end:
            self._mapping.madvise(mmap.MADV_DONTNEED, first, end - first)


def weight_format(type_name: str) -> WeightFormat | None:
    """The format of a type of this name, in safetensors and in GGUF; None where nothing computes with it as it is."""
    return _FORMATS.get(type_name)


def listed(names: Sequence[str]) -> str:
    """The first few names, in a message of one line."""
    first = ", ".join(names[:_NAMES_SHOWN])
    return first if len(names) <= _NAMES_SHOWN else f"{first} and {len(names) - _NAMES_SHOWN} more"
