"""The threads that compute steps: one is the caller's, the others live as long as the crew.

Must not know: what a command does, models.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.cpu.simd.compiler import Program
from layered_llm.runtime.cpu.simd.control import LINE_WORDS, WORD_BYTES, Command, Word
from layered_llm.runtime.cpu.simd.memory_blocks import address_of, aligned_words, whole_lines

_STOP_TIMEOUT_S: Final = 5.0


class Crew:
    """Carries out one command at a time, in all its threads together. Between commands they sleep."""

    def __init__(self, program: Program, *, threads: int) -> None:
        words = whole_lines((max(Word) + 1) * WORD_BYTES) // WORD_BYTES
        self.control: NDArray[np.int64] = aligned_words(words + 2 * threads * LINE_WORDS)
        self.control[Word.THREADS] = threads
        self.control[Word.COUNTERS] = address_of(self.control[words:])
        self.control[Word.SYSCALL] = ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value or 0
        self.panels: Final = program.panels
        """How matrices of blocks must lie for what the threads do."""
        self.needs: Final = program.needs
        """What the threads can compute."""
        self._lead: Callable[[int], None] = program.lead
        self._works = threading.Lock()
        followers = [
            threading.Thread(target=_follow, args=(program, self.control, number), name=f"step-{number}", daemon=True)
            for number in range(1, threads)
        ]
        for follower in followers:
            follower.start()
        self._stop = weakref.finalize(self, _stop, program, self.control, followers, self._works, os.getpid())

    @property
    def threads(self) -> int:
        return int(self.control[Word.THREADS])

    def carry_out(self, command: Command) -> None:
        """Returns when all threads are done. The control words must be set, and what they point to must stay."""
        with self._works:
            if not self._stop.alive:
                raise InvariantViolated("a closed crew is given work")
            self.control[Word.COMMAND] = command
            self._lead(address_of(self.control))

    def close(self) -> None:
        """Ends the threads; also done when the crew is forgotten and when the program ends."""
        self._stop()


def _follow(program: Program, control: NDArray[np.int64], number: int) -> None:
    program.follow(address_of(control), number)


def _stop(
    program: Program, control: NDArray[np.int64], followers: list[threading.Thread], works: threading.Lock, owner_pid: int
) -> None:
    """The lock is for a program that ends while a thread of it computes: two leaders would wait for ever.

    So would the copy of a crew in a forked process, which has none of the threads.
    """
    if os.getpid() != owner_pid or not works.acquire(timeout=_STOP_TIMEOUT_S):
        return
    control[Word.COMMAND] = Command.STOP
    program.lead(address_of(control))
    works.release()
    for follower in followers:
        follower.join(_STOP_TIMEOUT_S)
