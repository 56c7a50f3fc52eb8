"""What an engine process says to be its reason when it ends by a fault of its own."""

import sys
from pathlib import Path

import pytest
import trio

from layered_llm.service.processes.children import run_child
from layered_llm.service.processes.processes import start_child
from layered_llm.service.settings.settings import Settings, child_environment

PROGRAM = """
from layered_llm.domain.messages.supervision import Role
from layered_llm.service.processes.engine_process import run_engine_process

class Expected(Exception):
    pass

def work(arguments):
    raise {error}

run_engine_process(Role.SCHEDULER, work, expected=(Expected,))
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ExceptionGroup('a', [ExceptionGroup('b', [ValueError('the leaf')])])", "scheduler-0: ValueError: the leaf"),
        ("ExceptionGroup('a', [ValueError('one'), KeyError('two')])", "scheduler-0: ValueError: one; KeyError: 'two'"),
        ("ZeroDivisionError('two\\nlines')", "scheduler-0: ZeroDivisionError: two lines"),
        ("ExceptionGroup('a', [Expected('no disk')])", "scheduler-0: no disk"),
    ],
)
async def test_the_reason_is_what_was_raised_without_its_groups(tmp_path: Path, error: str, reason: str) -> None:
    (tmp_path / "settings.json").write_text(Settings().to_json())
    words = (f"--run-directory={tmp_path}", "--generation=1", "--index=0", "--checkpoint=none")
    with trio.fail_after(60):
        child = start_child((sys.executable, "-c", PROGRAM.format(error=error), *words), child_environment())
        ended = await run_child("scheduler-0", child)

    assert (1, reason) == (ended.returncode, str(ended))
