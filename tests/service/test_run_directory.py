import fcntl
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from layered_llm.service.run_directory import Owner, RunDirectory, RunDirectoryError


@pytest.fixture(autouse=True)
def temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def this_process() -> Owner:
    return Owner.of(os.getpid())


def dead_owner() -> Owner:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = Owner.of(child.pid)
    child.communicate()
    return owner


def test_a_process_is_alive_until_it_ends(this_process: Owner) -> None:
    assert (True, False) == (this_process.is_alive, dead_owner().is_alive)


def test_another_process_with_the_same_pid_is_another_owner(this_process: Owner) -> None:
    assert not Owner(this_process.pid, this_process.start_time - 1).is_alive


def test_the_directory_is_private_and_the_same_for_one_owner(this_process: Owner) -> None:
    first, second = RunDirectory.for_owner(this_process), RunDirectory.for_owner(this_process)

    assert first == second
    assert 0o700 == stat.S_IMODE(first.path.stat().st_mode)
    assert 0o700 == stat.S_IMODE(first.path.parent.stat().st_mode)


def test_a_base_that_others_can_write_is_refused(this_process: Owner, temporary_directory: Path) -> None:
    (temporary_directory / f"layered-llm-{os.getuid()}").mkdir(mode=0o777)
    (temporary_directory / f"layered-llm-{os.getuid()}").chmod(0o777)

    with pytest.raises(RunDirectoryError, match="private"):
        RunDirectory.for_owner(this_process)


def test_a_file_where_the_base_should_be_is_refused(this_process: Owner, temporary_directory: Path) -> None:
    (temporary_directory / f"layered-llm-{os.getuid()}").touch()

    with pytest.raises(RunDirectoryError, match="private"):
        RunDirectory.for_owner(this_process)


def test_a_place_where_nothing_can_be_made_is_refused(
    this_process: Owner, temporary_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary_directory / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(temporary_directory / "file"))

    with pytest.raises(RunDirectoryError, match=r"set TMPDIR to another place: .*Not a directory"):
        RunDirectory.for_owner(this_process)


def test_what_cannot_be_swept_is_in_nobodys_way(this_process: Owner) -> None:
    dead = dead_owner()
    stale = RunDirectory.for_owner(this_process).path.with_name(f"{dead.pid}-{dead.start_time}")
    (stale / "supervisor.lock").mkdir(parents=True)

    assert RunDirectory.for_owner(this_process).path.is_dir()


def test_a_directory_that_was_removed_is_made_again(this_process: Owner) -> None:
    directory = RunDirectory.for_owner(this_process)
    directory.path.rmdir()
    directory.path.parent.rmdir()
    with pytest.raises(FileNotFoundError):
        directory.try_lock()

    directory.make()

    lock = directory.try_lock()
    assert lock is not None
    os.close(lock)


def test_the_lock_of_a_directory_that_is_removed_while_it_is_taken_is_none(
    this_process: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory.for_owner(this_process)
    flock = fcntl.flock

    def remove_and_lock(descriptor: int, operation: int) -> None:
        directory.remove()
        flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", remove_and_lock)

    with pytest.raises(FileNotFoundError):
        directory.try_lock()


def test_only_one_process_gets_the_lock(this_process: Owner) -> None:
    directory = RunDirectory.for_owner(this_process)
    lock = directory.try_lock()

    assert lock is not None
    assert directory.try_lock() is None
    os.close(lock)


def test_the_lock_is_free_when_its_holder_is_gone(this_process: Owner) -> None:
    directory = RunDirectory.for_owner(this_process)
    lock = directory.try_lock()
    assert lock is not None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock])
    os.close(lock)

    assert directory.try_lock() is None
    child.communicate()
    again = directory.try_lock()
    assert again is not None
    os.close(again)


def test_directories_of_dead_owners_are_swept(this_process: Owner) -> None:
    leftover = RunDirectory.for_owner(dead_owner())

    RunDirectory.for_owner(this_process)

    assert not leftover.path.exists()


def test_a_directory_whose_supervisor_still_lives_is_left_alone(this_process: Owner) -> None:
    closing = RunDirectory.for_owner(dead_owner())
    lock = closing.try_lock()
    assert lock is not None

    RunDirectory.for_owner(this_process)

    assert closing.path.exists()
    os.close(lock)


def test_sockets_in_the_way_are_removed_and_nothing_else(this_process: Owner) -> None:
    directory = RunDirectory.for_owner(this_process)
    directory.settings_path.write_text("{}")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory.path / "supervisor"))

    directory.clear_sockets()

    assert [directory.settings_path] == list(directory.path.iterdir())
