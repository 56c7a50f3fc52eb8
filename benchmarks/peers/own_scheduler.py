"""This project's scheduler by itself, in a process of its own: `benchmarks.scheduler_step` measures two of them.

python -m benchmarks.peers.own_scheduler
"""

import statistics

from benchmarks.peers.protocol import Setup, Size, serve
from benchmarks.scheduler_step import measure


class OwnScheduler:
    """It has no model: what it is opened with says nothing to it."""

    def __init__(self, _setup: Setup) -> None:
        pass

    def size(self) -> Size:
        return Size(weight_bytes=0, kv_item_bytes=0)

    def step_us(self, running: int, prompt_tokens: int, steps: int, *, prefix_cache: bool) -> tuple[float, float]:
        """The median step, and the median reference loop between the steps."""
        timings = measure(running, prompt_tokens, steps, prefix_cache=prefix_cache)
        return statistics.median(timings.step_us), statistics.median(timings.reference_us)


if __name__ == "__main__":
    serve(OwnScheduler)
