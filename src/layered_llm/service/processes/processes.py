"""Processes as the system knows them: starting one, when it began, whether something has stopped it, dying with one's parent.

Must not know: links, roles, event loops: processes are started with it before these are imported.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Final

REASON_MARK: Final = "\x1e"
"""Begins a line on standard error that is the child's reason to end: whoever ran the child says it, once."""
_STDIN: Final = 0
_CHUNK_BYTES: Final = 4096

_START_TIME_FIELD: Final = 22
"""proc_pid_stat(5) counts fields from 1: pid, then the command in parentheses, then the rest."""
_FIRST_FIELD_AFTER_COMMAND: Final = 3
_STOPPED_STATES: Final = ("T", "t")


def process_start_time(pid: int) -> int:
    """When the process started, in clock ticks since boot; with the pid it names a process for ever.

    Raises ProcessLookupError when there is no such process.
    """
    return int(_fields(pid)[_START_TIME_FIELD - _FIRST_FIELD_AFTER_COMMAND])


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process, however busy it was; not for one that is gone."""
    try:
        return _fields(pid)[0] in _STOPPED_STATES
    except ProcessLookupError:
        return False


def _fields(pid: int) -> list[str]:
    """What stands behind the command, from the process's state on. Raises ProcessLookupError."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    # The command may itself contain spaces and parentheses.
    return stat[stat.rindex(")") + 1 :].split()


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module with this interpreter, as `ps` shows it."""
    return (sys.executable, "-m", module, *arguments)


def start_child(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """A child for `run_child`, in a session of its own, with pipes for its input and its standard error. Raises OSError."""
    return subprocess.Popen(  # noqa: S603 - our own modules
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environment), start_new_session=True
    )


def exit_at_stdin_eof(exit_code: int) -> Thread:
    """Starts a thread that ends this process as soon as stdin does, which means that the parent at its other end is gone.

    The thread needs the interpreter for an instant only, so that it works while the rest of the process computes; and the
    process ends without any cleanup, since nobody is left to wait for it. The parent must keep its end open and give it to
    no other child, and nobody else may read stdin.
    """
    thread = Thread(target=_exit_at_eof, args=(exit_code,), name="stdin-eof", daemon=True)
    thread.start()
    return thread


def _exit_at_eof(exit_code: int) -> None:
    with contextlib.suppress(OSError):  # a stdin that cannot be read is no lifeline either
        while os.read(_STDIN, _CHUNK_BYTES):
            pass
    os._exit(exit_code)


def give_back_memory() -> None:
    """Returns to the system what this process has freed: the C library keeps it, which after a large start is for nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others keep less
    if trim is not None:
        trim(0)
