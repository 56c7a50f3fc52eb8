import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from layered_llm.domain.ids import ApiId
from layered_llm.domain.messages.supervision import EnginePhase, EngineStatus
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.processes.run_directory import Owner, RunDirectory
from layered_llm.service.server import engine_host
from layered_llm.service.server.engine_host import FIRST_WORD_S, LAST_LOOK_S, PAUSE_S, EngineHost
from layered_llm.service.settings.settings import Settings
from layered_llm.service.supervisor.supervisor_process import start_ahead
from support.service_ends import TEST_S

SETTINGS = Settings(device="scripted")
SILENT = (sys.executable, "-c", "import threading; threading.Event().wait()")
DEAF = (
    sys.executable,
    "-c",
    "import signal, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN); threading.Event().wait()",
)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Paths of ipc sockets are short: the directories that pytest makes are too long.
    home = Path(tempfile.mkdtemp(prefix="llm-"))
    monkeypatch.setattr("tempfile.tempdir", str(home))
    yield home
    shutil.rmtree(home)


def new_client() -> EngineClient:
    return EngineClient(api=ApiId(5), pid=os.getpid(), max_open_requests=8, draw_seed=lambda: 1)


def host(client: EngineClient) -> EngineHost:
    return EngineHost(client, SETTINGS, Owner.of(os.getpid()))


async def failed_status() -> EngineStatus:
    """The status that a host gives its client, as soon as it has failed; the host is then told to leave."""
    client = new_client()
    with trio.fail_after(TEST_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host(client).run)
            while client.status().phase is not EnginePhase.FAILED:
                await client.status_change()
            status = client.status()
            nursery.cancel_scope.cancel()
    return status


async def test_a_directory_that_is_not_ours_fails_the_engine(home: Path) -> None:
    (home / f"layered-llm-{os.getuid()}").touch()

    status = await failed_status()

    assert "is not a private directory of this user" in status.detail


async def test_a_host_that_dies_leaves_nobody_waiting(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory.for_owner(Owner.of(os.getpid()))
    directory.settings_path.mkdir()  # so that it cannot be written

    client = new_client()

    with trio.fail_after(TEST_S), pytest.RaisesGroup(IsADirectoryError, flatten_subgroups=True):
        await host(client).run()

    assert EnginePhase.FAILED == client.status().phase


async def test_a_supervisor_that_cannot_be_started_leaves_the_lock(home: Path) -> None:
    directory = RunDirectory.for_owner(Owner.of(os.getpid()))
    directory.settings_path.mkdir()  # so that it cannot be written

    with trio.fail_after(TEST_S), pytest.RaisesGroup(IsADirectoryError, flatten_subgroups=True):
        await host(new_client()).run()

    lock = directory.try_lock()
    assert lock is not None
    os.close(lock)


def test_a_directory_that_vanishes_is_no_end(home: Path) -> None:
    directory = RunDirectory.for_owner(Owner.of(os.getpid()))
    directory.remove()

    lock = engine_host._try_lock(directory)

    assert lock is not None
    os.close(lock)


@pytest.mark.parametrize(("command", "goodbye_s"), [(SILENT, TEST_S), (DEAF, 0.0)], ids=["silent", "deaf"])
async def test_a_supervisor_that_never_says_a_word_does_not_outlive_its_host(
    command: tuple[str, ...], goodbye_s: float, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layered_llm.service.supervisor.supervisor_process.python_module", lambda *_words: command)
    monkeypatch.setattr("layered_llm.service.engine_client.engine_connection.GOODBYE_S", goodbye_s)
    directory = RunDirectory.for_owner(Owner.of(os.getpid()))

    with trio.fail_after(TEST_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host(new_client()).run)
            while not directory.settings_path.exists():
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    assert not directory.path.exists()


async def test_a_supervisor_started_ahead_is_the_hosts_and_leaves_with_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layered_llm.service.supervisor.supervisor_process.python_module", lambda *_words: SILENT)
    directory = RunDirectory.for_owner(Owner.of(os.getpid()))
    ahead = start_ahead(SETTINGS)
    monkeypatch.setattr("layered_llm.service.supervisor.supervisor_process.python_module", None)  # nobody starts another

    with trio.fail_after(TEST_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(EngineHost(new_client(), SETTINGS, Owner.of(os.getpid()), ahead=ahead).run)
            await trio.testing.wait_all_tasks_blocked()
            is_taken = ahead.take() is None
            nursery.cancel_scope.cancel()

    assert (True, False) == (is_taken, directory.path.exists())


def held_by_another() -> tuple[RunDirectory, int]:
    """Our directory, and the lock as a supervisor would hold it."""
    directory = RunDirectory.for_owner(Owner.of(os.getpid()))
    lock = directory.try_lock()
    assert lock is not None
    return directory, lock


@pytest.mark.parametrize("is_freed", [True, False], ids=["freed", "held"])
async def test_who_is_told_to_stop_before_it_met_the_engine_leaves_with_it_and_starts_no_other(
    is_freed: bool, home: Path, autojump_clock: MockClock
) -> None:
    directory, lock = held_by_another()
    with trio.fail_after(TEST_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host(new_client()).run)
            await trio.sleep(FIRST_WORD_S / 2)
            if is_freed:
                os.close(lock)
                await trio.sleep(FIRST_WORD_S / 2 + PAUSE_S / 2)
            nursery.cancel_scope.cancel()
            if not is_freed:
                with trio.CancelScope(shield=True):
                    await trio.sleep(LAST_LOOK_S)
                    assert not directory.settings_path.exists()
                    os.close(lock)

    assert trio.current_time() < FIRST_WORD_S + PAUSE_S
    assert not directory.path.exists()


async def test_a_lock_that_stays_free_is_taken_for_another_supervisor(
    home: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr("layered_llm.service.supervisor.supervisor_process.python_module", lambda *_words: SILENT)
    directory, lock = held_by_another()
    with trio.fail_after(TEST_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host(new_client()).run)
            await trio.sleep(FIRST_WORD_S / 2)
            os.close(lock)
            await trio.sleep(FIRST_WORD_S / 2 + PAUSE_S / 2)
            had = directory.settings_path.exists()
            await trio.sleep(PAUSE_S)
            has = directory.settings_path.exists()
            nursery.cancel_scope.cancel()

    assert (False, True) == (had, has)


def test_a_supervisor_that_crashes_leaves_the_lock_for_the_next_one(home: Path) -> None:
    owner = Owner.of(os.getpid())
    directory = RunDirectory(home / ("d" * 100), owner)  # its sockets' paths are too long
    directory.make()
    directory.settings_path.write_text(SETTINGS.to_json())
    lock = directory.try_lock()
    assert lock is not None
    command = [sys.executable, "-m", "layered_llm.service.supervisor.supervisor", *directory.command_line(lock)]
    crashed = subprocess.run(command, pass_fds=[lock], stderr=subprocess.PIPE, check=False)
    os.close(lock)

    assert b"at most 107 are possible" in crashed.stderr
    again = directory.try_lock()
    assert again is not None
    os.close(again)
