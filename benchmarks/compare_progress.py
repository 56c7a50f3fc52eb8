"""How far a comparison is, and how many rounds there is time for."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import attrs
from tqdm import tqdm


@attrs.define
class Progress:
    """A bar over all that is planned, with the time that is left by the mean of what is done."""

    _bar: "tqdm[Any]"

    @contextlib.contextmanager
    def step(self, description: str) -> Iterator[None]:
        """One measurement, or one start; done however it ends."""
        self._bar.set_description(description)
        yield
        self._bar.update()

    def skip(self, steps: int) -> None:
        """They are planned no longer."""
        self._bar.total -= steps
        self._bar.refresh()


def rounds_until(rounds: int, end_s: float, progress: Progress, round_steps: int) -> Iterator[int]:
    """Numbers of rounds, from 0; none but the first that is likely to end behind `end_s`, by the longest before."""
    round_began_s = time.monotonic()
    longest_s = 0.0
    for number in range(rounds):
        if round_began_s + longest_s > end_s:
            progress.skip((rounds - number) * round_steps)
            return
        yield number
        ended_s = time.monotonic()
        longest_s = max(longest_s, ended_s - round_began_s)
        round_began_s = ended_s
