"""Processes as the system knows them: when one began, whether something has stopped it, the command that runs a module, memory.

Must not know: links, roles, event loops; a supervisor is started with it before any of these is imported.
"""

import ctypes
import sys
from pathlib import Path
from typing import Final

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


def give_back_memory() -> None:
    """Returns to the system what this process has freed: the C library keeps it, which after a large start is for nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others keep less
    if trim is not None:
        trim(0)
