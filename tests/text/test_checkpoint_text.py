import datetime as dt
import json
from pathlib import Path

import pytest

from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.text.checkpoint_text import TextFiles, UnreadableCheckpoint, read_text_files
from support.text_tokenizers import BOS, EOS, byte_level_pipeline


def write(directory: Path, **files: object) -> Path:
    """Writes tokenizer.json and the given files; `__` in a name stands for its dot, anything but a string becomes JSON."""
    (directory / "tokenizer.json").write_text(byte_level_pipeline().to_str())
    for name, content in files.items():
        path = directory / name.replace("__", ".")
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


def read(directory: Path) -> TextFiles:
    return read_text_files(directory, clock=lambda: dt.datetime(2025, 1, 1))


def rendered(files: TextFiles) -> object:
    assert files.template is not None
    return files.template.render([ChatMessage(role="user", content="hi")])


def test_tokenizer_json_alone_is_enough(tmp_path: Path) -> None:
    files = read(write(tmp_path))
    assert (None, frozenset()) == (files.template, files.eos_ids)
    assert [files.tokenizer.id_of("hello")] == files.tokenizer.encode("hello", add_special_tokens=True)


def test_eos_is_the_union_of_all_files(tmp_path: Path) -> None:
    files = read(
        write(
            tmp_path,
            tokenizer_config__json={"eos_token": EOS},
            config__json={"eos_token_id": 7, "text_config": {"eos_token_id": 8}},
            generation_config__json={"eos_token_id": [9, 7]},
        )
    )
    assert {files.tokenizer.id_of(EOS), 7, 8, 9} == files.eos_ids


def test_eos_may_be_null_or_an_added_token(tmp_path: Path) -> None:
    files = read(
        write(
            tmp_path,
            tokenizer_config__json={"eos_token": {"content": EOS, "__type": "AddedToken"}},
            config__json={"eos_token_id": None},
            generation_config__json={"eos_token_id": 0},
        )
    )
    assert {files.tokenizer.id_of(EOS), 0} == files.eos_ids


def test_the_template_file_comes_before_the_config(tmp_path: Path) -> None:
    files = read(write(tmp_path, chat_template__jinja="file", tokenizer_config__json={"chat_template": "config"}))
    assert "file" == rendered(files)


def test_the_template_may_stand_in_the_config_with_its_variables(tmp_path: Path) -> None:
    config = {"chat_template": "{{ bos_token }}{{ eos_token }}", "bos_token": BOS, "eos_token": {"content": EOS}}
    assert BOS + EOS == rendered(read(write(tmp_path, tokenizer_config__json=config)))


def test_of_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert "plain" == rendered(read(write(tmp_path, tokenizer_config__json={"chat_template": named})))


def test_named_templates_without_a_default_are_no_template(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}]
    assert read(write(tmp_path, tokenizer_config__json={"chat_template": named})).template is None


def test_the_template_may_stand_in_its_own_json_file(tmp_path: Path) -> None:
    assert "own" == rendered(read(write(tmp_path, chat_template__json={"chat_template": "own"})))


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableCheckpoint, match=r"tokenizer\.json does not exist"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer__json", "config__json", "tokenizer_config__json", "generation_config__json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(UnreadableCheckpoint, match=name.replace("__", r"\.")):
        read(write(tmp_path, **{name: content}))


def test_a_file_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    (write(tmp_path) / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(UnreadableCheckpoint, match=r"chat_template\.jinja cannot be read"):
        read(tmp_path)
