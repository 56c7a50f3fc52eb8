"""What the machine can do at best, with all threads: bytes read from memory, and multiplications and additions of fp32 numbers.

python -m benchmarks.peers.roofline_engine

Neither is what a library reaches: both are loops of machine code, the one over more memory than any cache holds, in huge pages
where the system has them, the other over registers alone.
"""

import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from benchmarks.peers.peak_loops import READ_BLOCK_BYTES, PeakLoops
from benchmarks.peers.protocol import Setup, Size, serve

READ_BYTES: Final = 1 << 28
READS: Final = 4
TURNS: Final = 1 << 23
"""A tenth of a second or less, as the reads are."""


class Roofline:
    """Answers with rates instead of times."""

    def __init__(self, setup: Setup) -> None:
        self._threads = setup.threads
        self._pool = ThreadPoolExecutor(setup.threads)
        self._loops = PeakLoops()
        self._memory = _touched_memory(READ_BYTES)

    def size(self) -> Size:
        return Size(weight_bytes=0, kv_item_bytes=0)

    def read_bytes_per_s(self) -> float:
        slice_bytes = READ_BYTES // self._threads // READ_BLOCK_BYTES * READ_BLOCK_BYTES

        def read(thread: int) -> None:
            for _ in range(READS):
                self._loops.read(self._memory.ctypes.data + thread * slice_bytes, slice_bytes)

        return READS * slice_bytes * self._threads / self._seconds(read)

    def multiply_flops_per_s(self) -> float:
        return self._threads * TURNS * self._loops.flops_per_turn / self._seconds(lambda _: self._loops.multiply(TURNS))

    def _seconds(self, work: Callable[[int], None]) -> float:
        """From the first thread that begins to the last that ends."""
        ready = threading.Barrier(self._threads)

        def timed(thread: int) -> tuple[float, float]:
            ready.wait()
            began_s = time.perf_counter()
            work(thread)
            return began_s, time.perf_counter()

        times = [*self._pool.map(timed, range(self._threads))]
        return max(ended_s for _, ended_s in times) - min(began_s for began_s, _ in times)


def _touched_memory(size_bytes: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """Zeros alone would be one page many times over."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, dtype=np.uint8)
    array[:] = 1
    return array


if __name__ == "__main__":
    serve(Roofline)
