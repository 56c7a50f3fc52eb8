"""Memory whose address generated code is given.

Must not know: what it holds.
"""

import contextlib
import mmap
from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.runtime.checkpoint.matrices import Bytes
from layered_llm.runtime.cpu.simd.kernels.machine import LINE_BYTES

_ROOM_BYTES: Final = 32 << 20
_GIB: Final = 1 << 30


def address_of(array: NDArray[Any]) -> int:
    """The array must be C-contiguous, and outlive the use of its address."""
    address: int = array.__array_interface__["data"][0]
    return address


def whole_lines(size_bytes: int) -> int:
    """The bytes of as many cache lines as hold so many."""
    return -(-size_bytes // LINE_BYTES) * LINE_BYTES


def aligned_words(count: int) -> NDArray[np.int64]:
    """`count` zeros that begin a cache line."""
    spare = LINE_BYTES // 8
    room = np.zeros(count + spare, np.int64)
    first = -address_of(room) % LINE_BYTES // 8
    return room[first : first + count]


@attrs.define(eq=False)
class GrowingBuffers:
    """Matrices of fp32 numbers with as many rows each. They grow together, by at least a half, and never shrink."""

    _columns: Sequence[int]
    _rows: int = 0
    _matrices: Sequence[NDArray[np.float32]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._matrices = self._allocated(self._rows)

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def matrices(self) -> Sequence[NDArray[np.float32]]:
        """[rows, columns] each, with whatever they hold."""
        return self._matrices

    def hold(self, rows: int) -> bool:
        """Makes room for so many rows. True where the matrices are others from now on.

        Raises MemoryError where there is none; then it holds what it held.
        """
        if rows <= self._rows:
            return False
        enough = max(rows, self._rows + self._rows // 2)
        self._matrices = self._allocated(enough)
        self._rows = enough
        return True

    def _allocated(self, rows: int) -> Sequence[NDArray[np.float32]]:
        return tuple(np.empty((rows, columns), np.float32) for columns in self._columns)


@attrs.define
class HugePages:
    """Memory for what is read as a whole in every step: in huge pages where the system has them, from which a core was measured
    to read 1.3 to 1.7 times as fast. It is the system's again when no array of it is left."""

    _most_bytes: int | None
    """That may be taken in all; None where the machine does not say what it has."""
    _taken_bytes: int = 0
    _room: Bytes = attrs.Factory(lambda: np.zeros(0, np.uint8))

    def take(self, size_bytes: int) -> Bytes:
        """Zeros that begin a cache line. Raises MemoryError, before the system would end the process for what it touches."""
        whole = whole_lines(size_bytes)
        self._taken_bytes += whole
        if self._most_bytes is not None and self._taken_bytes > self._most_bytes:
            raise MemoryError(f"the weights take more than the {self._most_bytes / _GIB:.1f} GiB of memory that are free")
        if whole > len(self._room):
            self._room = _weight_room(max(whole, _ROOM_BYTES))
        taken, self._room = self._room[:size_bytes], self._room[whole:]
        return taken


def _weight_room(size_bytes: int) -> Bytes:
    return mapped(size_bytes, mmap.MADV_HUGEPAGE, f"{size_bytes} bytes for weights")


def mapped(size_bytes: int, advice: int, what: str) -> Bytes:
    """Zeros that take memory when they are touched, in pages as advised. Raises MemoryError, which names `what`."""
    try:
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{what} cannot be mapped: {error}") from error
    with contextlib.suppress(OSError):  # a system without huge pages knows no such advice, and needs none
        memory.madvise(advice)
    return np.frombuffer(memory, np.uint8)
