import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from layered_llm.formats.untrusted_files import UnreadableFile, map_file, parse_json, read_json, read_text

NOT_REGULAR: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (os.mkfifo, "is a named pipe, not a regular file"),
    "directory": (Path.mkdir, "is a directory, not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device, not a regular file"),
    "loop": (lambda path: path.symlink_to(path.name), "cannot be read: Too many levels of symbolic links"),
    "socket": (lambda path: socket.socket(socket.AF_UNIX).bind(os.path.relpath(path)), "is a socket, not a regular file"),
}


@pytest.mark.parametrize("read", [read_text, read_json, map_file])
@pytest.mark.parametrize("kind", NOT_REGULAR)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_what_is_no_regular_file_is_refused_at_once(
    kind: str, read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, complaint = NOT_REGULAR[kind]
    make(tmp_path / "x.json")
    with pytest.raises(UnreadableFile, match=rf"x\.json {complaint}$"):
        read(tmp_path / "x.json")


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("{}")
    (tmp_path / "x.json").symlink_to("blob")
    assert {} == read_json(tmp_path / "x.json")


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.symlink_to("nowhere")], ids=["none", "link to nowhere"])
def test_a_file_that_is_not_there_is_none(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "x.json")
    assert read_json(tmp_path / "x.json") is None
    with pytest.raises(UnreadableFile, match=r"x\.json does not exist"):
        map_file(tmp_path / "x.json")


def test_a_file_above_the_limit_is_refused_and_one_at_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("12345")
    assert "12345" == read_text(tmp_path / "x", most_bytes=5)
    with pytest.raises(UnreadableFile, match="x has more than 4 bytes"):
        read_text(tmp_path / "x", most_bytes=4)


def test_an_empty_file_cannot_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(UnreadableFile, match="x is empty"):
        map_file(tmp_path / "x")


@pytest.mark.parametrize("name", ["a\0b", "a" * 300, "a" * 5000])
def test_a_name_that_no_file_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="cannot be read") as caught:
        read_text(tmp_path / name)
    assert len(str(caught.value)) < 600


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ab\xff")
    with pytest.raises(UnreadableFile, match="x cannot be read: it is not UTF-8 at byte 2"):
        read_text(tmp_path / "x")


DEEP = 100_000
BAD_JSON = {
    "nested lists": ('{"a": ' + "[" * DEEP + "]" * DEEP + "}", "is nested too deeply: at most 64 levels"),
    "nested objects": ('{"a":' * DEEP + "1" + "}" * DEEP, "is nested too deeply: at most 64 levels"),
    "65 levels": ('{"a": ' + "[" * 64 + "]" * 64 + "}", "is nested too deeply: at most 64 levels"),
    "a long number": (f'{{"a": [{"9" * 4001}]}}', "is no valid JSON: a number has 4001 digits, and at most 100 are read"),
    "a longer number": (f'{{"a": {"9" * 10_000}}}', "is no valid JSON: a number has 10000 digits"),
    "half a pair": ('{"a": "\\ud800"}', "is no valid JSON: it spells half of a surrogate pair"),
    "half a pair as a key": ('{"\\uDC00": 1}', "is no valid JSON: it spells half of a surrogate pair"),
    "a list": ("[]", "holds no JSON object"),
    "cut off": ('{"a"', "is no valid JSON: Expecting ':'"),
    "nothing": ("", "is no valid JSON: Expecting value"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_json_that_nobody_should_trust_is_refused_in_one_line(case: str) -> None:
    text, complaint = BAD_JSON[case]
    with pytest.raises(UnreadableFile, match=f"^x.json {complaint}") as caught:
        parse_json(text, "x.json")
    assert "\n" not in str(caught.value)


def test_what_files_have_is_read() -> None:
    text = '{"deep": ' + "[" * 63 + "]" * 63 + ', "pair": "\\ud83d\\ude00", "no_limit": 1000000000000000019884624838656}'
    content = parse_json(text, "x.json")
    assert ("😀", 1000000000000000019884624838656) == (content["pair"], content["no_limit"])


def test_of_a_key_that_is_there_twice_the_last_counts_unless_it_is_refused() -> None:
    assert {"a": 2} == parse_json('{"a": 1, "a": 2}', "x.json")
    with pytest.raises(UnreadableFile, match=r"^x.json is no valid JSON: it has a twice"):
        parse_json('{"a": 1, "a": 2}', "x.json", is_repetition_refused=True)
