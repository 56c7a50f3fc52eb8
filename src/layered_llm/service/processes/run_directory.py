"""The private directory of one running server: its sockets, its settings, and the lock that names the supervisor's owner.

Must not know: what the sockets carry.

The directory is keyed by the owner, which is the process whose end ends the server: hypercorn's parent, or the program
itself; a program may have several engines, each with a directory. Pid and start time together name a process for good, so
that a reused pid never finds a dead server's directory.
It lies below TMPDIR, or in a shorter place where the paths of sockets would be longer there than the kernel takes.
Whoever holds the lock is, or is about to start, the supervisor; the lock is passed on to it as an open file and so lives
exactly as long as it does.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

import attrs

from layered_llm.service.processes.processes import process_start_time
from layered_llm.service.settings.settings import runtime_directories
from layered_llm.service.settings.settings_fields import printable
from layered_llm.transport.addresses import MAX_IPC_PATH_BYTES, AddressError, LinkAddresses

_LOCK: Final = "supervisor.lock"
_SETTINGS: Final = "settings.json"
_LARGEST_GENERATION: Final = 99_999
"""More than a server has restarts in years."""
_NAME: Final = re.compile(r"(?P<pid>\d+)-(?P<start_time>\d+)(-[0-9a-f]+)?")


class RunDirectoryError(Exception):
    """The directory cannot be used; the text says why and what to do."""


@attrs.frozen
class Owner:
    """A process, named so that a later process with the same pid is another one."""

    pid: int
    start_time: int
    """Clock ticks since boot, as /proc/PID/stat has it."""

    @classmethod
    def of(cls, pid: int) -> "Owner":
        """Raises ProcessLookupError when there is no such process."""
        return cls(pid, process_start_time(pid))

    @property
    def is_alive(self) -> bool:
        try:
            return process_start_time(self.pid) == self.start_time
        except ProcessLookupError:
            return False


@attrs.frozen
class RunDirectory:
    """Paths in the directory of one server."""

    path: Path
    owner: Owner

    @classmethod
    def for_owner(cls, owner: Owner, engine: str = "") -> "RunDirectory":
        """Makes the directory, with mode 0700, unless it is there; sweeps those whose owners are gone.

        `engine`, in hexadecimal digits, keeps the engines of one program apart; a server has one engine and needs none.
        Raises RunDirectoryError.
        """
        try:
            path = _place("-".join(filter(None, (str(owner.pid), str(owner.start_time), engine))))
            _make_private(path.parent)
            _sweep(path.parent)
        except OSError as error:
            raise _no_place(error) from error
        directory = cls(path, owner)
        directory.make()
        return directory

    @classmethod
    def check_place(cls, owner: Owner) -> None:
        """Raises RunDirectoryError where `for_owner` would, and leaves nothing behind."""
        cls.for_owner(owner).remove_unless_locked()

    def make(self) -> None:
        """Makes the directory unless it is there: another process that swept, or a supervisor that left, may have removed it.

        Raises RunDirectoryError.
        """
        try:
            _make_private(self.path.parent)
            _make_private(self.path)
        except OSError as error:
            raise _no_place(error) from error

    @property
    def settings_path(self) -> Path:
        return self.path / _SETTINGS

    def command_line(self, lock: int) -> tuple[str, ...]:
        """The supervisor's arguments: this directory, and the lock as the open file that it inherits."""
        return (
            f"--run-directory={self.path}",
            f"--owner-pid={self.owner.pid}",
            f"--owner-start-time={self.owner.start_time}",
            f"--lock={lock}",
        )

    def try_lock(self) -> int | None:
        """An open, inheritable lock file, or None when another process holds it.

        Raises FileNotFoundError when the directory is not there any more.
        """
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink == 0:  # removed by its last holder, between the two calls above
            os.close(descriptor)
            raise FileNotFoundError(f"{self.path} was removed")
        return descriptor

    def clear_sockets(self) -> None:
        """Removes what a supervisor that was killed left in the way of the next one, which holds the lock."""
        for path in self.path.iterdir():
            if path.is_socket():
                path.unlink()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_unless_locked(self) -> None:
        """A held lock means that the supervisor still lives; it removes the directory itself."""
        with contextlib.suppress(FileNotFoundError):  # the supervisor was faster, or another server that sweeps
            lock = self.try_lock()
            if lock is not None:
                self.remove()
                os.close(lock)


def _no_place(error: OSError) -> RunDirectoryError:
    return RunDirectoryError(f"no run directory can be made, set TMPDIR to another place: {error}")


def _place(name: str) -> Path:
    """The directory `name` in the first place that leaves room for the paths of its sockets. Raises RunDirectoryError."""
    first, *others = (Path(place) for place in (tempfile.gettempdir(), *runtime_directories()))
    for place in (first, *(other for other in others if os.access(other, os.W_OK | os.X_OK))):
        path = place / f"layered-llm-{os.getuid()}" / name
        if _has_room(path):
            return path
    raise RunDirectoryError(
        f"TMPDIR {printable(first)}: the paths of sockets below it are longer than the kernel "
        f"takes ({MAX_IPC_PATH_BYTES} bytes), or no UTF-8; set TMPDIR to another place"
    )


def _has_room(path: Path) -> bool:
    try:
        LinkAddresses.in_directory(path, generation=_LARGEST_GENERATION)
    except AddressError:
        return False
    return True


def _make_private(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RunDirectoryError(f"{path} is not a private directory of this user; remove it, or set TMPDIR to another place")


def _sweep(base: Path) -> None:
    """Removes what a server left that was killed with all its processes at once; what cannot be removed is in nobody's way."""
    for path in base.iterdir():
        name = _NAME.fullmatch(path.name)
        owner = None if name is None else Owner(int(name["pid"]), int(name["start_time"]))
        if owner is not None and not owner.is_alive:
            with contextlib.suppress(OSError):
                RunDirectory(path, owner).remove_unless_locked()
