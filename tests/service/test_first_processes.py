import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from layered_llm.domain.messages.supervision import Role
from layered_llm.service.model.checkpoint import Checkpoint
from layered_llm.service.processes.run_directory import Owner, RunDirectory
from layered_llm.service.settings.settings import Settings
from layered_llm.service.supervisor.launching import ProcessLauncher
from layered_llm.service.supervisor.supervisor import start_first
from support.byte_checkpoint import write_byte_checkpoint

ENDS_WITH_ITS_INPUT = (sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(7)")
Children = dict[tuple[str, ...], "subprocess.Popen[bytes]"]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path, Owner.of(os.getpid()))


@pytest.fixture
def first(tmp_path: Path, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    """The first processes of a server with two text workers, none of which does anything."""
    write_byte_checkpoint(tmp_path)
    monkeypatch.setattr("layered_llm.service.supervisor.supervisor.start_child", lambda _command, _environment: idle())
    first = start_first(directory, Settings(device="scripted", model=str(tmp_path), num_tokenizers=2))
    yield first
    for child in first.values():
        end(child)


def idle() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(ENDS_WITH_ITS_INPUT, stdin=subprocess.PIPE, stderr=subprocess.PIPE)


def end(child: "subprocess.Popen[bytes]") -> None:
    for pipe in (child.stdin, child.stderr):
        if pipe is not None:
            pipe.close()
    child.wait()


def test_the_first_processes_are_those_of_the_first_generation(first: Children) -> None:
    modules = [[word for word in command if word.startswith("layered_llm.service.")] for command in first]

    assert [[f"layered_llm.service.workers.{role}"] for role in ("text", "text", "runtime", "scheduler")] == modules
    assert all("--generation=1" in command for command in first)


async def test_a_process_that_was_started_already_is_not_started_again(
    first: Children, directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layered_llm.service.supervisor.launching.start_child", None)
    child = next(child for command, child in first.items() if "layered_llm.service.workers.runtime" in command)
    assert child.stdin is not None
    child.stdin.close()

    with trio.fail_after(60):
        how = await ProcessLauncher(directory, first).run(
            Role.RUNTIME, 0, generation=1, checkpoint=Checkpoint(tmp_path, "model")
        )

    assert "runtime-0 exited with code 7" == how


async def test_the_next_generation_has_processes_of_its_own(
    first: Children, directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []

    def start(command: tuple[str, ...], _environment: object) -> "subprocess.Popen[bytes]":
        started.append(command)
        child = idle()
        assert child.stdin is not None
        child.stdin.close()
        return child

    monkeypatch.setattr("layered_llm.service.supervisor.launching.start_child", start)

    with trio.fail_after(60):
        await ProcessLauncher(directory, first).run(Role.RUNTIME, 0, generation=2, checkpoint=Checkpoint(tmp_path, "model"))

    assert ["--generation=2"] == [word for (*words,) in started for word in words if word.startswith("--generation")]


@pytest.mark.parametrize("model", ["nobody/this", "./not-there"], ids=["on a hub", "missing"])
def test_none_is_started_for_a_model_that_is_not_there_yet(model: str, directory: RunDirectory) -> None:
    assert {} == start_first(directory, Settings(model=model))
