"""Fetches a checkpoint from a model hub by a process that can be ended at any time.

Must not know: hubs, what is done with the checkpoint.

A download in this process could not be interrupted: its threads hold the interpreter's exit up until the last byte is there.
Where one was ended, the next goes on.
"""

import subprocess
from functools import partial
from pathlib import Path

import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.service.model.checkpoint import CheckpointError
from layered_llm.service.processes.processes import python_module
from layered_llm.service.settings.settings import child_environment


async def fetch_from_hub(model: str) -> Path:
    """The directory of a hub id's files. Raises CheckpointError."""
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                python_module("layered_llm.service.model.hub", model),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                check=False,
                deliver_cancel=_kill,
                env=child_environment(),
                start_new_session=True,
            )
        )
        if process.stdout is None:
            raise InvariantViolated("the standard output of the hub's process is a pipe")
        said = b"".join([bytes(part) async for part in process.stdout]).decode(errors="surrogateescape")
    if process.returncode == 0:
        return Path(said)
    reason = said or f"the download ended with code {process.returncode}"
    raise CheckpointError(f"--model {model}: there is no such directory, and as a hub id: {reason}")


async def _kill(process: trio.Process) -> None:
    process.kill()
