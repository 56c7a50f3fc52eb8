"""How the supervisor brings an engine process to life: as a process of the operating system.

Must not know: when a process is wanted, what follows from its end.
"""

import subprocess
from functools import partial
from typing import Protocol

import attrs

from layered_llm.domain.messages.supervision import Role
from layered_llm.service.model.checkpoint import Checkpoint
from layered_llm.service.processes.children import run_child
from layered_llm.service.processes.engine_process import engine_command
from layered_llm.service.processes.processes import is_stopped, start_child
from layered_llm.service.processes.run_directory import RunDirectory
from layered_llm.service.settings.settings import child_environment
from layered_llm.transport.peers import peer_name


class Launcher(Protocol):
    """Runs engine processes, or what stands for them in an embedded engine."""

    async def run(self, role: Role, index: int, *, generation: int, checkpoint: Checkpoint) -> str:
        """Runs one until it ends by itself, and says how it ended. Cancelling ends it."""

    def stopped(self) -> tuple[str, ...]:
        """Names of those that something from outside has stopped, and may let go on."""


@attrs.frozen
class ProcessLauncher:
    """Engine processes as `ps` shows them."""

    _directory: RunDirectory
    _ahead: "dict[tuple[str, ...], subprocess.Popen[bytes]]" = attrs.field(factory=dict)
    """Those that were started already, by their commands."""
    _pids: dict[str, int] = attrs.field(init=False, factory=dict)
    """Of those that run."""

    async def run(self, role: Role, index: int, *, generation: int, checkpoint: Checkpoint) -> str:
        command = engine_command(
            role, index, run_directory=self._directory.path, generation=generation, checkpoint=checkpoint.path
        )
        name = peer_name(role, index)
        child = self._ahead.pop(command, None) or start_child(command, child_environment())
        try:
            return str(await run_child(name, child, partial(self._pids.__setitem__, name)))
        finally:
            self._pids.pop(name, None)

    def stopped(self) -> tuple[str, ...]:
        return tuple(name for name, pid in self._pids.items() if is_stopped(pid))
