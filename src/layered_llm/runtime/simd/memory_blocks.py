"""Memory whose address generated code is given.

Must not know: what it holds.
"""

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
class GrowingBuffer:
    """Fp32 numbers [rows, columns]; it grows to the most rows that were asked for, by at least a half, and never shrinks."""

    _columns: int
    _numbers: NDArray[np.float32] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._numbers = np.empty((0, self._columns), np.float32)

    def rows(self, count: int) -> NDArray[np.float32]:
        """Its first `count` rows, with whatever they hold; views given earlier may be of older memory."""
        held = len(self._numbers)
        if count > held:
            self._numbers = np.empty((max(count, held + held // 2), self._columns), np.float32)
        return self._numbers[:count]
