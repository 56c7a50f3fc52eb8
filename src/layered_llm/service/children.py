"""One child process under trio: started, its last words kept, and gone when its scope is left.

Must not know: what the child does.

A child notices the end of its parent by the end of its standard input (see `engine_process`), so that even a parent that was
killed leaves nobody behind. It runs in a session of its own: Ctrl-C reaches only the parent, which takes its children along
in order.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated

EXIT_AT_EOF_S: Final = 0.2
"""A child that imports or compiles may look at its input later, and what it does then is as abrupt as being killed."""
KILLED_S: Final = 1.5
_LAST_WORDS_S: Final = 0.2
"""A grandchild that holds the pipe open must not hold us."""
_LONGEST_LINE_BYTES: Final = 16 * 1024


@attrs.frozen(kw_only=True)
class ChildExit:
    """How a child ended."""

    name: str
    returncode: int
    last_words: str
    """Its last line on standard error, the reason of a start that failed."""

    def __str__(self) -> str:
        if self.returncode < 0:
            return f"{self.name} was killed by {_signal_name(-self.returncode)}"
        said = f": {self.last_words}" if self.last_words else ""
        return f"{self.name} exited with code {self.returncode}{said}"


@attrs.define
class _LastWords:
    """Passes standard error on, and remembers its last line."""

    _pending: bytes = b""
    _line: bytes = b""

    def feed(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        self._line = next((line for line in reversed(lines) if line.strip()), self._line)
        self._pending = self._pending[-_LONGEST_LINE_BYTES:]

    @property
    def text(self) -> str:
        line = self._pending if self._pending.strip() else self._line
        return line.decode(errors="replace").strip()


async def run_child(name: str, command: Sequence[str], environment: Mapping[str, str]) -> ChildExit:
    """Runs a child to its end. When cancelled, the child's input is closed, and the child killed if it stays."""
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environment), start_new_session=True
    )
    words, drained = _LastWords(), trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_forward, process.stderr, words, drained)
            returncode = await process.wait()
            with trio.move_on_after(_LAST_WORDS_S):
                await drained.wait()
            nursery.cancel_scope.cancel()
    finally:
        await _end(process)
    return ChildExit(name=name, returncode=returncode, last_words=words.text)


async def _forward(stderr: trio.abc.ReceiveStream | None, words: _LastWords, drained: trio.Event) -> None:
    if stderr is None:
        raise InvariantViolated("a child's standard error is a pipe")
    async with stderr:
        async for data in stderr:
            words.feed(bytes(data))
            with contextlib.suppress(OSError):  # a full disk or a terminal that is gone is no reason to end the engine
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()
    drained.set()


async def _end(process: trio.Process) -> None:
    if process.returncode is not None:
        return
    if process.stdin is not None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await process.stdin.aclose()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + EXIT_AT_EOF_S):
        await process.wait()
    if process.returncode is None:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + KILLED_S):
            await process.wait()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module with this interpreter, as `ps` shows it."""
    return (sys.executable, "-m", module, *arguments)
