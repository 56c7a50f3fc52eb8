import datetime as dt
import json
import os
from pathlib import Path

import pytest

from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.domain.sampling import NO_DEFAULTS, SamplingDefaults
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


@pytest.mark.parametrize("entry", ["7", 7.5, True, {"id": 7}, [7, "8"], -5, [7, -5]])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_an_eos_id_that_is_none_is_named_with_its_file(tmp_path: Path, name: str, entry: object) -> None:
    directory = write(tmp_path, **{name.replace(".", "__"): {"eos_token_id": entry}})
    with pytest.raises(UnreadableCheckpoint, match=f"{name}: eos_token_id must be a token id"):
        read(directory)


def test_an_eos_id_that_no_token_can_have_is_no_fault(tmp_path: Path) -> None:
    files = read(write(tmp_path, config__json={"eos_token_id": [2**40, 3]}))
    assert files.tokenizer.spelling(3) == json.loads(files.config)["eos_token"]


@pytest.mark.parametrize(
    "entry", [5, ["a"], [{"name": "default"}], [{"name": 5, "template": "x"}], ["default", 1], {"default": 5}, True]
)
def test_a_chat_template_that_is_none_is_named_with_its_file(tmp_path: Path, entry: object) -> None:
    with pytest.raises(UnreadableCheckpoint, match=r"tokenizer_config\.json: chat_template must be"):
        read(write(tmp_path, tokenizer_config__json={"chat_template": entry}))


@pytest.mark.parametrize("entry", ["hi", [{"name": "default", "template": "hi"}], {"default": "hi", "tool_use": "no"}])
def test_a_chat_template_is_a_text_or_the_default_among_named_ones(tmp_path: Path, entry: object) -> None:
    assert "hi" == rendered(read(write(tmp_path, tokenizer_config__json={"chat_template": entry})))


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


def test_a_template_file_of_ones_own_comes_before_all_others(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("own")
    directory = write(tmp_path, chat_template__jinja="file")
    assert "own" == rendered(read_text_files(directory, clock=lambda: dt.datetime(2025, 1, 1), template_file=own))
    with pytest.raises(UnreadableCheckpoint, match=r"--chat-template .*missing\.jinja: there is no such file"):
        read_text_files(directory, clock=lambda: dt.datetime(2025, 1, 1), template_file=tmp_path / "missing.jinja")


GENERATION = {
    "temperature": 0.6,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": None,
    "repetition_penalty": 1.05,
    "max_new_tokens": 2048,
    "eos_token_id": [9, 7],
    "do_sample": True,
}


def test_the_generation_config_says_what_a_request_leaves_open(tmp_path: Path) -> None:
    files = read(write(tmp_path, generation_config__json=GENERATION))
    expected = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.05, max_tokens=2048)
    assert (expected, frozenset({9, 7})) == (files.defaults, files.eos_ids)


def test_without_defaults_the_generation_config_still_names_its_eos(tmp_path: Path) -> None:
    directory = write(tmp_path, generation_config__json=GENERATION)
    files = read_text_files(directory, clock=lambda: dt.datetime(2025, 1, 1), has_defaults=False)
    assert (NO_DEFAULTS, frozenset({9, 7})) == (files.defaults, files.eos_ids)


@pytest.mark.parametrize(("name", "value"), [("temperature", "hot"), ("top_p", 1.5), ("max_new_tokens", 0)])
def test_a_default_that_is_none_is_named_with_its_file(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(UnreadableCheckpoint, match=r"generation_config\.json: .*--generation-config none"):
        read(write(tmp_path, generation_config__json={name: value}))


def test_a_top_k_of_minus_one_filters_nothing(tmp_path: Path) -> None:
    assert NO_DEFAULTS == read(write(tmp_path, generation_config__json={"top_k": -1})).defaults


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


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "generation_config.json",
        "config.json",
        "chat_template.jinja",
        "chat_template.json",
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, name: str, kind: str) -> None:
    directory, place = write(tmp_path), tmp_path / name
    place.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "directory":
            place.mkdir()
        case _:
            place.symlink_to("/dev/zero")
    with pytest.raises(UnreadableCheckpoint, match=r"not a regular file$"):
        read(directory)


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json", "config.json"]
)
def test_a_file_that_is_nested_too_deeply_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    directory = write(tmp_path)
    (directory / name).write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(UnreadableCheckpoint, match=r"nested too deeply: at most \d+ levels are read$"):
        read(directory)


def test_what_a_client_is_told_of_the_tokenizer_is_json_whatever_python_reads(tmp_path: Path) -> None:
    config = {"model_max_length": float("inf"), "x": [float("nan"), 1.5], "y": "Infinity"}
    told = json.loads(read(write(tmp_path, tokenizer_config__json=config)).config, parse_constant=pytest.fail)
    assert [None, [None, 1.5], "Infinity"] == [told[name] for name in ("model_max_length", "x", "y")]
