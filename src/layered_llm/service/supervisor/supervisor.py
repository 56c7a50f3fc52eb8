"""The supervisor's process: starts the first engine processes, and then imports what it needs to follow them.

Must not know: links, what becomes of the processes.
"""

import argparse
import os
import signal
import subprocess
from pathlib import Path

from layered_llm.domain.messages.supervision import Role
from layered_llm.service.model.checkpoint import CheckpointError, is_on_hub, resolve
from layered_llm.service.processes.engine_process import engine_command, engine_processes, set_up_logging
from layered_llm.service.processes.processes import start_child
from layered_llm.service.processes.run_directory import Owner, RunDirectory
from layered_llm.service.settings.settings import Settings, child_environment

_FIRST_GENERATION = 1


def start_first(directory: RunDirectory, settings: Settings) -> "dict[tuple[str, ...], subprocess.Popen[bytes]]":
    """The first generation's processes by their commands; none where their model has to be looked for.

    They end with this process, as their input does. Raises OSError.
    """
    if settings.model is not None and is_on_hub(settings.model):
        return {}
    try:
        checkpoint = resolve(settings.model)
    except CheckpointError:  # whoever looks for it next says so
        return {}
    commands = (
        engine_command(role, index, run_directory=directory.path, generation=_FIRST_GENERATION, checkpoint=checkpoint.path)
        for role, index in engine_processes(settings.num_tokenizers, settings.tensor_parallel_size)
    )
    return {command: start_child(command, child_environment()) for command in commands}


def main() -> None:
    """The process's entry."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until here it was obeyed: see engine_host._end_unborn
    parser = argparse.ArgumentParser(
        prog="python -m layered_llm.service.supervisor.supervisor", description="Started by the server."
    )
    parser.add_argument("--run-directory", type=Path, required=True)
    parser.add_argument("--owner-pid", type=int, required=True)
    parser.add_argument("--owner-start-time", type=int, required=True)
    parser.add_argument("--lock", type=int, required=True, help="open file that holds the run directory's lock")
    words = parser.parse_args()
    os.set_inheritable(words.lock, False)
    directory = RunDirectory(words.run_directory, Owner(words.owner_pid, words.owner_start_time))
    settings = Settings.from_json(directory.settings_path.read_text())
    set_up_logging(Role.SUPERVISOR, settings)
    directory.clear_sockets()
    try:
        ahead = start_first(directory, settings)
        # Imported while the engine processes start.
        import trio  # noqa: PLC0415 - as said above

        from layered_llm.service.supervisor.supervisor_loop import supervise  # noqa: PLC0415 - as said above

        trio.run(supervise, directory, settings, ahead)
    except BaseException:
        # API processes go on and look for the lock, to start another supervisor.
        directory.clear_sockets()
        raise
    directory.remove()


if __name__ == "__main__":
    main()
