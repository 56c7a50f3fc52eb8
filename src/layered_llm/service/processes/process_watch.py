"""Learning of the death of processes, whoever started them, and burying adopted children.

Must not know: links, roles, what follows from a death.
"""

import contextlib
import ctypes
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import trio

from layered_llm.service.processes.processes import process_start_time

_INIT_PID: Final = 1
_PR_GET_CHILD_SUBREAPER: Final = 37
"""Of <linux/prctl.h>."""
REAP_INTERVAL_S: Final = 0.5

WaitExit = Callable[[int], Awaitable[None]]
"""Returns when the process of this pid has ended."""


async def wait_process_exit(pid: int, *, start_time: int | None = None) -> None:
    """Returns when the process has ended, at once when it already had; it need not be a child of ours.

    With `start_time` (see `process_start_time`) another process that got the same pid meanwhile counts as "ended".
    """
    await trio.lowlevel.checkpoint()
    with contextlib.suppress(ProcessLookupError), _pidfd(pid) as descriptor:
        # Asked only now: the descriptor pins the process, so the answer is about the one that is waited for.
        if start_time is None or process_start_time(pid) == start_time:
            await trio.lowlevel.wait_readable(descriptor)


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def adopts_orphans() -> bool:
    """Whether this process becomes the parent of processes below it that lose theirs: the first of a container does."""
    if os.getpid() == _INIT_PID:
        return True
    is_subreaper = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(is_subreaper), 0, 0, 0)
    return bool(is_subreaper.value)


async def reap_adopted() -> None:
    """Frees the entries of dead children in the process table that nobody here waits for, for ever.

    A child of ours has a task that waits for it, and is gone before it is seen for the second time; so nobody's exit code is
    taken. The kernel shows one dead child at a time.
    """
    seen = None
    while True:
        await trio.sleep(REAP_INTERVAL_S)
        found = _dead_child()
        while found is not None and found == seen:
            _bury(found)
            found = _dead_child()
        seen = found


def _dead_child() -> int | None:
    """One that can be waited for, and can be after this call as well."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def _bury(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
