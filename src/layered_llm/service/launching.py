"""How the supervisor brings an engine process to life: as a process of the operating system.

Must not know: when a process is wanted, what follows from its end.
"""

from typing import Protocol

import attrs

from layered_llm.domain.messages.supervision import Role
from layered_llm.service.checkpoint import Checkpoint
from layered_llm.service.children import python_module, run_child
from layered_llm.service.engine_process import EngineArguments
from layered_llm.service.run_directory import RunDirectory
from layered_llm.service.settings import child_environment
from layered_llm.service.supervision import peer_name


class Launcher(Protocol):
    """Runs engine processes, or what stands for them in an embedded engine."""

    async def run(self, role: Role, index: int, *, generation: int, checkpoint: Checkpoint) -> str:
        """Runs one until it ends by itself, and says how it ended. Cancelling ends it."""


@attrs.frozen
class ProcessLauncher:
    """Engine processes as `ps` shows them."""

    _directory: RunDirectory

    async def run(self, role: Role, index: int, *, generation: int, checkpoint: Checkpoint) -> str:
        arguments = EngineArguments.command_line(
            run_directory=self._directory.path, generation=generation, index=index, checkpoint=checkpoint.path
        )
        command = python_module(f"layered_llm.service.{role}", *arguments)
        return str(await run_child(peer_name(role, index), command, child_environment()))
