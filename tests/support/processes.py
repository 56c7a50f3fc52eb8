"""Processes found through /proc, so that a test sees those that nobody told it of."""

import os
import signal
from pathlib import Path

import attrs


@attrs.frozen
class FoundProcess:
    """A process that had not ended when it was looked for."""

    pid: int
    command: tuple[str, ...]

    @property
    def role(self) -> str:
        """text, scheduler, runtime or supervisor; for another process the last part of its program's path."""
        for word in self.command:
            if word.startswith("layered_llm.service."):
                return word.rpartition(".")[2]
        return Path(self.command[0]).name

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def processes_of_environment(entry: str) -> tuple[FoundProcess, ...]:
    """All processes that were started with `entry`, as NAME=value, in their environment; the dead ones left out."""
    wanted = entry.encode()
    found = [_look(int(path.name), wanted) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return tuple(process for process in found if process is not None)


def _look(pid: int, wanted: bytes) -> FoundProcess | None:
    try:
        if wanted not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return None
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return FoundProcess(pid, tuple(word.decode() for word in words)) if words != [b""] else None
