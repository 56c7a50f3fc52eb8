"""The two ways in which a chat meets its user: a terminal, and a pipe. And what Ctrl-C means at each moment.

Must not know: conversations, backends.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from layered_llm.service.settings.cli_parser import say

PROMPT: Final = ">>> "
MORE_PROMPT: Final = "... "
HISTORY_LINES: Final = 1000
_DIM: Final = "\x1b[2m"
_RED: Final = "\x1b[31m"
_PLAIN: Final = "\x1b[0m"
_CONTROL: Final = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
"""What a model must not send to a terminal: with an escape sequence it could retitle, clear or question it."""


class Front(Protocol):
    """What the shell says, and hears."""

    @property
    def is_interactive(self) -> bool:
        """Somebody is there, who sees what happens and may go on after it."""

    def read_line(self, *, is_more: bool) -> str:
        """The next line, without its end. Raises EOFError, and KeyboardInterrupt if Ctrl-C does so now."""

    def write(self, text: str, *, is_aside: bool = False) -> None:
        """A part of an answer; asides are no part of what the model says to the user."""

    def note(self, text: str) -> None:
        """Something beside the conversation, for whoever is there."""

    def error(self, text: str) -> None:
        """Something went wrong."""


class Terminal:
    """A person with a keyboard. Implements `Front`."""

    is_interactive: Final = True

    def __init__(self, *, has_colours: bool) -> None:
        self._dim, self._red, self._plain = (_DIM, _RED, _PLAIN) if has_colours else ("", "", "")

    def read_line(self, *, is_more: bool) -> str:
        return input(MORE_PROMPT if is_more else PROMPT)

    def write(self, text: str, *, is_aside: bool = False) -> None:
        shown = text.translate(_CONTROL)
        sys.stdout.write(f"{self._dim}{shown}{self._plain}" if is_aside else shown)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        self.write(text + "\n", is_aside=True)

    def error(self, text: str) -> None:
        sys.stdout.write(f"{self._red}{text.translate(_CONTROL)}{self._plain}\n")
        sys.stdout.flush()


class Pipe:
    """A script. Implements `Front`."""

    is_interactive: Final = False

    def read_line(self, *, is_more: bool) -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")

    def write(self, text: str, *, is_aside: bool = False) -> None:
        if not is_aside:
            sys.stdout.write(text)
            sys.stdout.flush()

    def note(self, text: str) -> None:
        pass

    def error(self, text: str) -> None:
        say(text)


def open_front(*, has_colours: bool) -> Front:
    """The one that standard input and output are fit for; neither fails on bytes or characters that the encoding lacks."""
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr] # both are TextIOWrapper, which TextIO does not say
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return Terminal(has_colours=has_colours) if is_terminal else Pipe()


class Interrupts:
    """Ctrl-C, as something that the shell decides about: where it decides nothing, there is nothing to interrupt."""

    def __init__(self) -> None:
        self._action = _nothing

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Takes SIGINT over; main thread only."""
        before = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextlib.contextmanager
    def calling(self, action: Callable[[], None]) -> Iterator[None]:
        """While the block runs Ctrl-C calls this, in the main thread between two instructions."""
        self._action = action
        try:
            yield
        finally:
            self._action = _nothing

    def raising(self) -> contextlib.AbstractContextManager[None]:
        """While the block runs Ctrl-C raises KeyboardInterrupt, once."""
        return self.calling(self._raise)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._action()

    def _raise(self) -> None:
        self._action = _nothing
        raise KeyboardInterrupt


def _nothing() -> None:
    pass


@contextlib.contextmanager
def line_editing(history: Path | None) -> Iterator[None]:
    """Editing of lines, and a history that outlives the chat; one that cannot be kept, or is None, is no reason not to chat."""
    try:
        import readline  # noqa: PLC0415 - it takes hold of the terminal, and some Pythons have none
    except ImportError:
        yield
        return
    readline.set_auto_history(True)
    readline.set_history_length(HISTORY_LINES)
    if history is None:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch(mode=0o600)
            readline.write_history_file(history)
