"""Memory whose address generated code is given.

Must not know: what it holds.
"""

from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

_LINE_BYTES: Final = 64


def address_of(array: NDArray[Any]) -> int:
    """The array must be C-contiguous, and outlive the use of its address."""
    address: int = array.__array_interface__["data"][0]
    return address


def aligned_words(count: int) -> NDArray[np.int64]:
    """`count` zeros that begin a cache line."""
    spare = _LINE_BYTES // 8
    room = np.zeros(count + spare, np.int64)
    first = -address_of(room) % _LINE_BYTES // 8
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
