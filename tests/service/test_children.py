import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from layered_llm.service.processes.children import ChildExit, run_child
from layered_llm.service.processes.processes import REASON_MARK, process_start_time, start_child

SAYS_ITS_PID = "import os, sys, threading; sys.stderr.write(f'pid {os.getpid()}\\n'); sys.stderr.flush();"
FOLLOWS = f"{SAYS_ITS_PID} sys.stdin.read()"
IGNORES_EOF = f"{SAYS_ITS_PID} threading.Event().wait()"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def run(code: str) -> ChildExit:
    return await run_child("child", start_child(python(code), os.environ))


@contextlib.contextmanager
def full_stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard error of this process on a full disk."""
    with io.TextIOWrapper(Path("/dev/full").open("wb", buffering=0)) as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", full)
        yield


async def test_an_exit_is_told_with_the_last_words() -> None:
    ended = await run("import sys; print('first\\nno config.json\\n', file=sys.stderr); sys.exit(3)")

    assert "child exited with code 3: no config.json" == str(ended)


async def test_a_reason_is_told_and_not_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    ended = await run(f"import sys; sys.stderr.write('first\\n{REASON_MARK}no config.json\\nlast'); sys.exit(3)")

    assert "child: no config.json" == str(ended)
    assert "first\nlast\n" == capfd.readouterr().err


async def test_the_log_says_who_ended_and_how_where_no_reason_was_given(caplog: pytest.LogCaptureFixture) -> None:
    await run("import sys; sys.exit(3)")
    await run(f"import sys; sys.stderr.write('{REASON_MARK}no config.json'); sys.exit(3)")
    await run("pass")

    (message,) = caplog.messages
    assert re.fullmatch(r"child exited with code 3 \(pid \d+\)", message)


async def test_a_line_without_end_is_passed_on_in_pieces(capfd: pytest.CaptureFixture[str]) -> None:
    await run("import sys; sys.stderr.write('x' * 100_000)")

    assert 100_000 == capfd.readouterr().err.count("x")


async def test_words_that_cannot_be_passed_on_do_not_harm_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    with full_stderr(monkeypatch):
        ended = await run("import sys; print('first', file=sys.stderr); sys.exit(3)")

    assert "child exited with code 3: first" == str(ended)


async def test_a_killed_child_is_told_by_its_signal() -> None:
    ended = await run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")

    assert "child was killed by SIGKILL" == str(ended)


async def test_a_grandchild_that_holds_the_pipe_does_not_hold_us() -> None:
    grandchild = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE).pid)"

    with trio.fail_after(30):
        ended = await run(f"{grandchild}; sys.stdout.flush(); import os; os._exit(0)")

    assert 0 == ended.returncode


@pytest.mark.parametrize("code", [FOLLOWS, IGNORES_EOF], ids=["follows", "ignores"])
async def test_leaving_the_scope_ends_the_child(code: str, capfd: pytest.CaptureFixture[str]) -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_child, "child", start_child(python(code), os.environ))
            pid = await told_pid(capfd)
            assert process_start_time(pid) > 0
            nursery.cancel_scope.cancel()

    with pytest.raises(ProcessLookupError):
        process_start_time(pid)


async def test_the_child_has_a_session_of_its_own() -> None:
    ended = await run("import os, sys; sys.exit(0 if os.getsid(0) == os.getpid() else 1)")

    assert 0 == ended.returncode


async def told_pid(capfd: pytest.CaptureFixture[str]) -> int:
    while True:
        words = capfd.readouterr().err.split()
        if words:
            return int(words[1])
        await trio.sleep(0.01)


def test_signal_names_are_known() -> None:
    assert "child was killed by SIGTERM" == str(ChildExit(name="child", returncode=-signal.SIGTERM, last_words=""))
