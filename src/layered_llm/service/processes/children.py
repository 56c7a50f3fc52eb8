"""One child process under trio: started, its last words kept, and gone when its scope is left.

Must not know: what the child does.

A child notices the end of its parent by the end of its standard input (see `engine_process`), so that even a parent that was
killed leaves nobody behind. It runs in a session of its own: Ctrl-C reaches only the parent, which takes its children along
in order.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Final

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.service.processes.process_watch import wait_process_exit
from layered_llm.service.processes.processes import REASON_MARK

EXIT_AT_EOF_S: Final = 0.2
"""A child that imports or compiles may look at its input later, and what it does then is as abrupt as being killed."""
KILLED_S: Final = 1.5
_LAST_WORDS_S: Final = 0.2
"""A grandchild that holds the pipe open must not hold us."""
_LONGEST_LINE_BYTES: Final = 16 * 1024

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class ChildExit:
    """How a child ended."""

    name: str
    returncode: int
    reason: str = ""
    """What it said to be its reason."""
    last_words: str = ""
    """Its last line on standard error, of one that gave no reason."""

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name}: {self.reason}"
        said = f": {self.last_words}" if self.last_words and self.returncode >= 0 else ""
        return f"{self.how}{said}"

    @property
    def how(self) -> str:
        """Without what it said itself."""
        if self.returncode < 0:
            return f"{self.name} was killed by {_signal_name(-self.returncode)}"
        return f"{self.name} exited with code {self.returncode}"


@attrs.define
class _Words:
    """A child's standard error: what is to be passed on, its reasons, and its last line."""

    _pending: bytes = b""
    _line: bytes = b""
    _reasons: list[str] = attrs.field(factory=list)

    def feed(self, data: bytes) -> bytes:
        """The whole lines that are to be passed on now."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > _LONGEST_LINE_BYTES:
            lines, self._pending = [*lines, self._pending], b""
        return b"".join(map(self._take, lines))

    def end(self) -> bytes:
        """What is left to be passed on when nothing more comes."""
        rest, self._pending = self._pending, b""
        return self._take(rest) if rest else b""

    def _take(self, line: bytes) -> bytes:
        text = line.decode(errors="replace").strip(" \t\r")  # to Python, the mark would be a blank as well
        if text.startswith(REASON_MARK):
            self._reasons.append(text.removeprefix(REASON_MARK))
            return b""
        self._line = line if text else self._line
        return line + b"\n"

    @property
    def reason(self) -> str:
        return "; ".join(self._reasons)

    @property
    def last(self) -> str:
        return self._line.decode(errors="replace").strip()


async def run_child(
    name: str, process: "subprocess.Popen[bytes]", on_start: Callable[[int], None] = lambda _pid: None
) -> ChildExit:
    """Follows a child that `start_child` started, of whose pid `on_start` hears, to its end.

    When cancelled, the child's input is closed, and the child killed if it stays.
    """
    on_start(process.pid)
    words, drained, stderr = _Words(), trio.Event(), _stream(process.stderr)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_forward, stderr, words, drained)
            await wait_process_exit(process.pid)
            with trio.move_on_after(_LAST_WORDS_S):
                await drained.wait()
            nursery.cancel_scope.cancel()
    finally:
        _pass_on(words.end())
        returncode = await _end(process)
    ended = ChildExit(name=name, returncode=returncode, reason=words.reason, last_words=words.last)
    if returncode:
        # Whoever ran the child says its reason; beside that, its exit status is a second line for the same fault.
        logger.log(logging.DEBUG if ended.reason else logging.ERROR, "%s (pid %d)", ended.how, process.pid)
    return ended


def _stream(pipe: IO[bytes] | None) -> trio.lowlevel.FdStream:
    if pipe is None:
        raise InvariantViolated("a child's standard error is a pipe")
    with pipe:
        return trio.lowlevel.FdStream(os.dup(pipe.fileno()))


async def _forward(stderr: trio.lowlevel.FdStream, words: _Words, drained: trio.Event) -> None:
    async with stderr:
        async for data in stderr:
            _pass_on(words.feed(bytes(data)))
    drained.set()


def _pass_on(data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk or a terminal that is gone is no reason to end the engine
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()


async def _end(process: "subprocess.Popen[bytes]") -> int:
    """The exit code, of one that had ended, or is made to."""
    if process.stdin is not None:
        process.stdin.close()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + EXIT_AT_EOF_S):
        await wait_process_exit(process.pid)
    if process.poll() is None:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + KILLED_S):
            await wait_process_exit(process.pid)
    code = process.poll()
    return -signal.SIGKILL if code is None else code


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
