import fcntl
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from layered_llm.service.processes.run_directory import Owner, RunDirectory, RunDirectoryError
from layered_llm.transport.addresses import LinkAddresses


@pytest.fixture(autouse=True)
def temporary_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Paths of ipc sockets are short: the directories that pytest makes are too long.
    with tempfile.TemporaryDirectory(prefix="llm-") as place:
        monkeypatch.setattr("tempfile.tempdir", place)
        yield Path(place)


@pytest.fixture
def short_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place for users who have none of their own."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with tempfile.TemporaryDirectory(prefix="llm-") as place:
        monkeypatch.setattr("layered_llm.service.settings.settings._TEMPORARY", place)
        yield Path(place)


def unfit_places(below: Path) -> list[Path]:
    """One whose paths are too long for sockets, one that ZMQ cannot name."""
    return [below / ("d" * 100), Path(os.fsdecode(os.fsencode(below) + b"/\xff"))]


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


@pytest.mark.parametrize("which", [0, 1], ids=["long", "no-utf-8"])
def test_a_tmpdir_that_sockets_cannot_be_in_is_left_for_the_place_that_everybody_has(
    which: int, this_process: Owner, temporary_directory: Path, short_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit = unfit_places(temporary_directory)[which]
    unfit.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(unfit))

    directory = RunDirectory.for_owner(this_process)

    assert short_place / f"layered-llm-{os.getuid()}" == directory.path.parent
    assert [] == list(unfit.iterdir())


def test_the_users_own_runtime_directory_goes_before_the_place_that_everybody_has(
    this_process: Owner, temporary_directory: Path, short_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = temporary_directory / "own"
    own.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    monkeypatch.setattr("tempfile.tempdir", str(unfit_places(temporary_directory)[0]))

    assert own / f"layered-llm-{os.getuid()}" == RunDirectory.for_owner(this_process).path.parent


def test_a_runtime_directory_that_is_not_there_is_passed_over(
    this_process: Owner, temporary_directory: Path, short_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(temporary_directory / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(unfit_places(temporary_directory)[0]))

    assert short_place / f"layered-llm-{os.getuid()}" == RunDirectory.for_owner(this_process).path.parent


@pytest.mark.parametrize("which", [0, 1], ids=["long", "no-utf-8"])
def test_where_no_place_is_short_enough_tmpdir_and_the_limit_are_named(
    which: int, this_process: Owner, temporary_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layered_llm.service.settings.settings._TEMPORARY", str(temporary_directory / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(unfit_places(temporary_directory)[which]))

    with pytest.raises(RunDirectoryError, match=r"^TMPDIR .*107 bytes.*set TMPDIR to another place$") as caught:
        RunDirectory.for_owner(this_process)

    assert str(caught.value).encode()


def test_a_directory_has_room_for_the_sockets_of_late_generations(
    this_process: Owner, short_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long TMPDIR is, what is chosen is never found too short later, when a restart has a longer number."""
    for length in range(1, 100):
        place = short_place / ("d" * length)
        place.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(place))
        chosen = RunDirectory.for_owner(this_process).path
        LinkAddresses.in_directory(chosen, generation=99_999)


def test_looking_at_the_place_leaves_nothing_there(this_process: Owner, temporary_directory: Path) -> None:
    RunDirectory.check_place(this_process)

    assert [] == list((temporary_directory / f"layered-llm-{os.getuid()}").iterdir())


def test_looking_at_the_place_leaves_a_running_server_alone(this_process: Owner) -> None:
    directory = RunDirectory.for_owner(this_process)
    lock = directory.try_lock()
    assert lock is not None

    RunDirectory.check_place(this_process)

    assert directory.path.is_dir()
    os.close(lock)
