import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from layered_llm.runtime.cpu.simd.code_cache import keep_code, read_code

CODE = bytes(range(256))


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    """The file in which `CODE` is kept under "key"."""
    keep_code(tmp_path / "kernels", "key", CODE)
    (entry,) = (tmp_path / "kernels").iterdir()
    return entry


def test_what_is_kept_is_read_under_its_key_alone(entry: Path) -> None:
    assert (CODE, None) == (read_code(entry.parent, "key"), read_code(entry.parent, "other"))
    assert None is read_code(entry.parent / "nowhere", "key")


def test_nobody_else_may_write_what_is_kept(entry: Path) -> None:
    assert [0o700, 0o644] == [stat.S_IMODE(each.stat().st_mode) for each in (entry.parent, entry)]


@pytest.mark.parametrize("place", [0, 31, 32, 287, 288])
def test_a_damaged_entry_is_not_read(place: int, entry: Path) -> None:
    stored = entry.read_bytes()
    entry.write_bytes(stored[:place])
    cut_off = read_code(entry.parent, "key") if place < len(stored) else None
    entry.write_bytes(stored[:place] + b"x" + stored[place + 1 :])
    assert (None, None) == (cut_off, read_code(entry.parent, "key"))


def test_an_entry_in_anothers_place_is_not_read(entry: Path) -> None:
    entry.rename(entry.with_stem("other"))
    assert None is read_code(entry.parent, "other")


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_what_others_may_have_written_is_not_read(mode: int, entry: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry.chmod(mode)
    assert None is read_code(entry.parent, "key")
    assert any("others than this user may have written it" in message for message in caplog.messages)
    keep_code(entry.parent, "key", CODE)
    assert CODE == read_code(entry.parent, "key")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_is_not_read(entry: Path) -> None:
    os.chown(entry, 12345, 12345)
    assert None is read_code(entry.parent, "key")


def test_a_pipe_in_an_entrys_place_holds_nobody_up(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)
    assert None is read_code(entry.parent, "key")


def test_a_directory_that_cannot_be_written_costs_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert not keep_code(tmp_path / "file" / "kernels", "key", CODE)
    assert any("cannot be kept" in message for message in caplog.messages)
    assert None is read_code(tmp_path / "file" / "kernels", "key")


def test_an_entry_is_whole_while_several_keep_it(entry: Path) -> None:
    code = 1000 * CODE
    keep_code(entry.parent, "key", code)
    with ThreadPoolExecutor(4) as pool:
        written = [pool.submit(keep_code, entry.parent, "key", code) for _ in range(40)]
        read = [pool.submit(read_code, entry.parent, "key") for _ in range(40)]
    assert {code} == {each.result() for each in read}
    assert [True] * 40 == [each.result() for each in written]
    assert [entry] == list(entry.parent.iterdir())
