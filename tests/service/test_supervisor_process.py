import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from layered_llm.service.processes.run_directory import Owner, RunDirectory
from layered_llm.service.settings.settings import Settings, SettingsError
from layered_llm.service.supervisor.supervisor_process import start_ahead, supervisor_ahead

SETTINGS = Settings(device="scripted")
SILENT = (sys.executable, "-c", "import threading; threading.Event().wait()")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Paths of ipc sockets are short: the directories that pytest makes are too long.
    home = Path(tempfile.mkdtemp(prefix="llm-"))
    monkeypatch.setattr("tempfile.tempdir", str(home))
    monkeypatch.setattr("layered_llm.service.supervisor.supervisor_process.python_module", lambda *_words: SILENT)
    yield home
    shutil.rmtree(home)


def own_directory() -> RunDirectory:
    return RunDirectory.for_owner(Owner.of(os.getpid()))


def test_one_that_nobody_took_is_gone_with_its_directory() -> None:
    with supervisor_ahead(SETTINGS) as ahead:
        directory = own_directory()
        process = ahead._process
        held = directory.try_lock()

    assert (None, False) == (held, directory.path.exists())
    assert process is not None
    assert process.returncode is not None


def test_one_that_was_taken_outlives_the_block() -> None:
    with supervisor_ahead(SETTINGS) as ahead:
        process = ahead.take()

    assert process is not None
    with process:
        assert process.poll() is None
        process.kill()


def test_none_is_started_where_another_process_has_the_lock() -> None:
    lock = own_directory().try_lock()
    assert lock is not None

    ahead = start_ahead(SETTINGS)

    assert ahead.take() is None
    os.close(lock)


def test_settings_that_cannot_be_kept_start_nothing(home: Path) -> None:
    with pytest.raises(SettingsError, match="--certfile and --keyfile belong together"):
        start_ahead(Settings(device="scripted", certfile="cert.pem"))

    assert [] == list(home.iterdir())


def test_it_starts_before_anything_slow_is_imported() -> None:
    program = (
        "import sys\n"
        "import layered_llm.service.cli, layered_llm.service.supervisor.supervisor_process\n"
        "print([name for name in ('trio', 'zmq', 'msgspec', 'quart', 'hypercorn', 'numpy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "[]\n" == done.stdout


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("supervisor.supervisor", ("numpy", "quart", "hypercorn", "jinja2", "tokenizers", "layered_llm.scheduling.core")),
        ("workers.scheduler", ("numpy", "quart", "hypercorn", "jinja2", "tokenizers", "layered_llm.text.core")),
        ("workers.text", ("numpy", "quart", "hypercorn", "jinja2", "layered_llm.scheduling.core")),
        (
            "workers.runtime",
            ("quart", "hypercorn", "jinja2", "tokenizers", "layered_llm.scheduling.core", "layered_llm.text.core"),
        ),
    ],
)
def test_a_process_imports_nothing_of_the_others(module: str, others: tuple[str, ...]) -> None:
    program = f"import sys, layered_llm.service.{module}\nprint([name for name in {others} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "[]\n" == done.stdout
