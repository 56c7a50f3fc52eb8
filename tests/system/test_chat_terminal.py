import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.pty_program import PtyProgram, pty_program
from support.server import python_server, scripted

CONTEXT_TOKENS = 1024
PROMPT = ">>> "
ENGINE = ("--device", "scripted", "--max-tokens", "24")
SLOW = ("--device", "scripted", "--scripted-step-ms", "10")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_checkpoint(tmp_path_factory.mktemp("model") / "tiny", context_tokens=CONTEXT_TOKENS)


@contextlib.contextmanager
def chat(state: Path, *words: str) -> Iterator[PtyProgram]:
    environment = {"XDG_STATE_HOME": str(state), "XDG_CACHE_HOME": str(state)}
    with pty_program("-m", "layered_llm", *words, environment=environment) as program:
        yield program


def say(program: PtyProgram, line: str) -> str:
    """Types a line at the prompt; everything up to the next prompt."""
    program.type(f"{line}\n")
    return program.read_until(PROMPT)


def test_conversation_in_the_terminal(model: Path, tmp_path: Path) -> None:
    with chat(tmp_path, "chat", str(model), *ENGINE) as program:
        assert "tiny on scripted" in program.read_until(PROMPT)
        first = say(program, "Hi")
        second = say(program, "/system Be kind.")
        third = say(program, "Why?")
        say(program, "/reset")
        fourth = say(program, "one\\\n")
        program.type("\x04")

        assert 0 == program.wait()

    # The scripted device says its prompt again, so that an answer shows what was asked.
    assert "\nuser\nHiassistant\nuser\n24 tokens · " in first
    assert "TTFT" in first
    assert "the system prompt is set" in second
    assert "\nsystem\nBe kind.user\nHi\n24 tokens · " in third
    assert "\nsystem\nBe kind.user\non\n24 tokens · " in fourth
    assert "Traceback" not in program.shown


def test_ctrl_c_stops_the_answer_and_nothing_else(model: Path, tmp_path: Path) -> None:
    with chat(tmp_path, "chat", str(model), *SLOW) as program:
        program.read_until(PROMPT)
        program.type("endless\n")
        program.read_until("user\nendless")
        program.type("\x03")
        stopped = program.read_until(PROMPT)
        # One request runs at a time: another one answers only when nothing is left of the first.
        program.type("again\n")
        program.read_until("user\nendless")
        program.type("\x03")
        program.read_until(PROMPT)
        program.clear_line("not sent", PROMPT)
        program.type("\x04")

        assert 0 == program.wait()

    assert "· stopped\n" in stopped
    assert "Traceback" not in program.shown


def test_history_is_kept_from_one_chat_to_the_next(model: Path, tmp_path: Path) -> None:
    with chat(tmp_path, "chat", str(model), *ENGINE) as program:
        program.read_until(PROMPT)
        say(program, "/system Remembered.")
        program.type("/exit\n")
        assert 0 == program.wait()

    with chat(tmp_path, "--shell", "--model", str(model), *ENGINE) as program:
        program.read_until(PROMPT)
        program.type("\x1b[A\x1b[A")
        program.read_until("system Remembered.")
        program.clear_line("", PROMPT)
        program.type("\x04")
        assert 0 == program.wait()

    assert 0o600 == (tmp_path / "layered_llm" / "chat_history").stat().st_mode & 0o777


def test_full_context_suggests_reset(model: Path, tmp_path: Path) -> None:
    with chat(tmp_path, "chat", str(model), "--device", "scripted", "--max-model-len", "64") as program:
        program.read_until(PROMPT)
        filled = say(program, "x")
        refused = say(program, "y")
        say(program, "/reset")
        again = say(program, "z")
        program.type("\x04")
        assert 0 == program.wait()

    assert "cut off: the context is full. /reset begins a new conversation." in filled
    assert "/reset begins a new conversation." in refused
    assert "user\nz" in again


def test_chat_with_a_server_leaves_nothing_in_it(model: Path, tmp_path: Path) -> None:
    with (
        python_server(scripted(model, scripted_step_ms=10)) as server,
        chat(tmp_path, "chat", "--url", server.base_url) as program,
    ):
        assert f"tiny at {server.base_url}" in program.read_until(PROMPT)
        program.type("Hi\n")
        program.read_until("user\nHi")
        program.type("\x03")
        stopped = program.read_until(PROMPT)
        server.wait_quiescent()
        program.type("\x04")

        assert 0 == program.wait()
        assert "· stopped\n" in stopped


def test_ctrl_c_while_the_engine_starts_leaves_without_a_traceback(model: Path, tmp_path: Path) -> None:
    with chat(tmp_path, "chat", str(model), *ENGINE) as program:
        program.read_until("starting")
        program.type("\x03")

        assert 130 == program.wait()

    assert "Traceback" not in program.shown


def piped(model: Path, text: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "layered_llm", "chat", str(model), *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def test_answers_to_a_script_are_all_that_is_on_standard_output(model: Path) -> None:
    done = piped(model, "Hi\n\n/reset\none\\\ntwo\n", *ENGINE)

    assert ("user\nHiassistant\nuser\nuser\none\ntwoassistant\n\n", "", 0) == (done.stdout, done.stderr, done.returncode)


def test_script_that_asks_for_too_much_fails(model: Path) -> None:
    done = piped(model, "x" * CONTEXT_TOKENS + "\nnot asked\n", *ENGINE)

    assert ("", 1) == (done.stdout, done.returncode)
    assert done.stderr.startswith("layered-llm: ")
    assert "/reset begins a new conversation." in done.stderr


def test_reader_of_a_script_may_leave_early(model: Path) -> None:
    command = [sys.executable, "-m", "layered_llm", "chat", str(model), *SLOW]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"Hi\n")
        process.stdin.flush()
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()

        assert 1 == process.wait(30)
        assert b"" == process.stderr.read()


def test_script_is_ended_by_a_signal_without_a_traceback(model: Path) -> None:
    command = [sys.executable, "-m", "layered_llm", "chat", str(model), *SLOW]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"Hi\n")
        process.stdin.flush()
        os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)

        assert 130 == process.wait(30)
        assert b"" == process.stderr.read()


def test_model_that_is_none_ends_the_chat(tmp_path: Path) -> None:
    done = piped(tmp_path / "missing", "Hi\n", *ENGINE)

    assert ("", 1) == (done.stdout, done.returncode)
    assert "there is no such file or directory" in done.stderr
