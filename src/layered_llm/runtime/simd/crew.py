"""The threads that compute steps: one is the caller's, the others live as long as the crew.

Must not know: what a command does, models.
"""

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layered_llm.runtime.simd.compiler import Program
from layered_llm.runtime.simd.control import Command, Word
from layered_llm.runtime.simd.memory_blocks import address_of, aligned_words

_JOIN_TIMEOUT_S: Final = 5.0


class Crew:
    """Carries out one command at a time, in all its threads together. Between commands they sleep."""

    def __init__(self, program: Program, *, threads: int) -> None:
        self.control: NDArray[np.int64] = aligned_words(len(_WORDS) and max(_WORDS) + 1)
        self.control[Word.THREADS] = threads
        self.control[Word.SYSCALL] = ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value or 0
        self._lead: Callable[[int], None] = program.lead
        followers = [
            threading.Thread(target=_follow, args=(program, self.control, number), name=f"step-{number}", daemon=True)
            for number in range(1, threads)
        ]
        for follower in followers:
            follower.start()
        self._stop = weakref.finalize(self, _stop, program, self.control, followers)

    @property
    def threads(self) -> int:
        return int(self.control[Word.THREADS])

    def carry_out(self, command: Command) -> None:
        """Returns when all threads are done. The control words must be set, and what they point to must stay."""
        self.control[Word.COMMAND] = command
        self._lead(address_of(self.control))

    def close(self) -> None:
        """Ends the threads; also done when the crew is forgotten and when the program ends."""
        self._stop()


_WORDS: Final = tuple(Word)


def _follow(program: Program, control: NDArray[np.int64], number: int) -> None:
    program.follow(address_of(control), number)


def _stop(program: Program, control: NDArray[np.int64], followers: list[threading.Thread]) -> None:
    control[Word.COMMAND] = Command.STOP
    program.lead(address_of(control))
    for follower in followers:
        follower.join(_JOIN_TIMEOUT_S)
