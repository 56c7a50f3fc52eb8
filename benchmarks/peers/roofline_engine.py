"""What the machine can do at best: bytes read from memory and products of fp32 matrices, by the libraries that are there.

python -m benchmarks.peers.roofline_engine
"""

import time

import torch
from benchmarks.peers.protocol import Setup, Size, serve

READ_ITEMS = 1 << 26
"""256 MiB of fp32: far more than any cache holds."""
MATRIX = 1024
PRODUCTS = 4


class Roofline:
    """Answers with rates instead of times."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        self._items = torch.ones(READ_ITEMS)
        self._matrix = torch.ones(MATRIX, MATRIX)
        self._out = torch.empty(MATRIX, MATRIX)

    def size(self) -> Size:
        return Size(weight_bytes=0, kv_item_bytes=0)

    def read_bytes_per_s(self) -> float:
        started_s = time.perf_counter()
        self._items.sum()
        return self._items.nbytes / (time.perf_counter() - started_s)

    def multiply_flops_per_s(self) -> float:
        started_s = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(self._matrix, self._matrix, out=self._out)
        return PRODUCTS * 2 * MATRIX**3 / (time.perf_counter() - started_s)


if __name__ == "__main__":
    serve(Roofline)
