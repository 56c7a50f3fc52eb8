"""A program at a pseudo terminal, typed at and read as a person does."""

import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

TIMEOUT_S: Final = 30.0
_PATIENCE_S: Final = 2.0
_ESCAPE: Final = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")


@attrs.define(eq=False)
class PtyProgram:
    """One program. What it shows is read in order: `read_until` goes on behind what the call before it found."""

    pid: int
    _terminal: int
    raw: bytes = b""
    _seen: int = 0

    @property
    def shown(self) -> str:
        """Everything so far, without colours, with plain line ends."""
        return _ESCAPE.sub("", self.raw.decode(errors="replace")).replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def clear_line(self, text: str, prompt: str) -> None:
        """Types `text` and Ctrl-C until there is a new prompt.

        Python's loop around readline sleeps through a signal that comes while it handles a key, until the next one.
        """
        deadline_s = time.monotonic() + TIMEOUT_S
        self.type(f"{text}\x03")
        while self.shown.find(prompt, self._seen) < 0:
            assert time.monotonic() < deadline_s, f"no {prompt!r} in {self.shown!r}"
            if not self._is_readable(_PATIENCE_S):
                self.type("\x03")
            else:
                assert self._read(0.0), f"ended without {prompt!r}: {self.shown!r}"
        self.read_until(prompt)

    def read_until(self, text: str) -> str:
        """What it showed up to and with `text`."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while (at := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline_s, f"no {text!r} in {self.shown!r}"
            assert self._read(deadline_s - time.monotonic()), f"ended without {text!r}: {self.shown!r}"
        before, self._seen = self._seen, at + len(text)
        return self.shown[before : self._seen]

    def wait(self) -> int:
        """Its exit code."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while self._read(max(0.0, deadline_s - time.monotonic())):
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def _is_readable(self, timeout_s: float) -> bool:
        return bool(select.select([self._terminal], [], [], timeout_s)[0])

    def _read(self, timeout_s: float) -> bool:
        """Whether there was more."""
        assert self._is_readable(timeout_s), f"silent: {self.shown!r}"
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # what Linux says when the last one at the other side is gone
            return False
        self.raw += data
        return bool(data)


@contextlib.contextmanager
def pty_program(*words: str, environment: Mapping[str, str]) -> Iterator[PtyProgram]:
    """`python` with these words, killed at the end if it still runs."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAYERED_LLM_")}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, *words], {**inherited, "TERM": "xterm", **environment})
    program = PtyProgram(pid, terminal)
    try:
        yield program
    finally:
        if program.pid:
            os.kill(program.pid, signal.SIGKILL)
            os.waitpid(program.pid, 0)
        os.close(terminal)
