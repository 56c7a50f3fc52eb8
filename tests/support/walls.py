"""Arrays behind which memory cannot be touched."""

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PROT_NONE = 0


def before_a_wall(array: NDArray[Any]) -> NDArray[Any]:
    """A copy whose last byte is the last of a page; whoever reads or writes behind it ends the process with SIGSEGV.

    The wall stays as long as the process.
    """
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room = np.frombuffer(memory, np.uint8)
    end = pages * mmap.PAGESIZE
    address = room.__array_interface__["data"][0] + end
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), _PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = room[end - array.nbytes : end].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy
