"""Starts the supervisor's process, for a server before anything else: what the web server imports takes as long as an engine.

Must not know: links, event loops, the web server, and what of these is slow to import.
"""

import contextlib
import multiprocessing
import os
import subprocess
from collections.abc import Iterator

import attrs

from layered_llm.service.model.settings_checks import check_before_start
from layered_llm.service.processes.processes import python_module
from layered_llm.service.processes.run_directory import Owner, RunDirectory, RunDirectoryError
from layered_llm.service.settings.settings import Settings, SettingsError, child_environment


@attrs.define(eq=False)
class SupervisorAhead:
    """A supervisor that was started before the API process could talk to it."""

    _directory: RunDirectory
    _process: "subprocess.Popen[bytes] | None"

    def take(self) -> "subprocess.Popen[bytes] | None":
        """The process, which the caller waits for from now on; None where it was taken or never started."""
        process, self._process = self._process, None
        return process

    def end(self) -> None:
        """Ends one that nobody has taken; its children end with it."""
        process = self.take()
        if process is not None:
            process.kill()
            process.wait()
            self._directory.remove()


@contextlib.contextmanager
def supervisor_ahead(settings: Settings) -> Iterator[SupervisorAhead]:
    """One that does not outlive the block, unless it is taken there. Raises SettingsError."""
    ahead = start_ahead(settings)
    try:
        yield ahead
    finally:
        ahead.end()


def start_ahead(settings: Settings) -> SupervisorAhead:
    """Starts one, unless another process of this server has or had one running. Raises SettingsError."""
    check_before_start(settings)
    try:
        directory = RunDirectory.for_owner(server_owner())
    except RunDirectoryError as error:
        raise SettingsError(str(error)) from error
    lock = None
    with contextlib.suppress(FileNotFoundError):  # removed by one that leaves: who is left starts the next
        lock = directory.try_lock()
    return SupervisorAhead(directory, None if lock is None else start_supervisor(directory, lock, settings))


def start_supervisor(directory: RunDirectory, lock: int, settings: Settings) -> "subprocess.Popen[bytes]":
    """Hands the lock on to a new process. Raises OSError."""
    command = python_module("layered_llm.service.supervisor.supervisor", *directory.command_line(lock))
    try:
        directory.settings_path.write_text(settings.to_json())
        return subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.DEVNULL, env=child_environment(), start_new_session=True, pass_fds=[lock]
        )
    finally:
        os.close(lock)


def server_owner() -> Owner:
    """The process whose end ends the server: hypercorn's parent in a worker that it spawned, else this one."""
    parent = multiprocessing.parent_process()
    return Owner.of(parent.pid if parent is not None and parent.pid is not None else os.getpid())
