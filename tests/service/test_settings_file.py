import argparse
import json
import os
from pathlib import Path
from typing import Any

import attrs
import pytest

from layered_llm.service.settings.settings import Settings, SettingsError, add_arguments, load


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "llm.toml"


def loaded(config: Path, text: str) -> Settings:
    config.write_text(text)
    return load(None, {"LAYERED_LLM_CONFIG": str(config)})


def test_the_file_goes_before_the_default_the_environment_before_the_file_and_the_command_line_before_all(config: Path) -> None:
    config.write_text("port = 9001\npage_size = 2\nnum_pages = 8\n")
    environment = {"LAYERED_LLM_PORT": "9002", "LAYERED_LLM_PAGE_SIZE": "4"}

    settings = load(parse("--config", str(config), "--port", "9003"), environment)

    assert (9003, 4, 8, 256) == (settings.port, settings.page_size, settings.num_pages, settings.max_running_requests)


def test_the_flag_names_another_file_than_the_environment(config: Path, tmp_path: Path) -> None:
    config.write_text("port = 9001")
    (tmp_path / "other.toml").write_text("page_size = 4")

    settings = load(parse("--config", str(config)), {"LAYERED_LLM_CONFIG": str(tmp_path / "other.toml")})

    assert (9001, 16) == (settings.port, settings.page_size)


def test_no_file_is_read_where_the_variable_is_empty() -> None:
    assert Settings() == load(None, {"LAYERED_LLM_CONFIG": ""})


def test_a_file_can_set_every_setting(config: Path) -> None:
    wanted = Settings(**{field.name: other_value(field, getattr(Settings(), field.name)) for field in attrs.fields(Settings)})
    lines = [f"{name} = {json.dumps(value)}" for name, value in attrs.asdict(wanted).items()]

    assert wanted == loaded(config, "\n".join(lines))


def other_value(field: "attrs.Attribute[Any]", default: Any) -> Any:
    if field.metadata["choices"]:
        return field.metadata["choices"][-1]
    match default:
        case bool():
            return not default
        case int() | float():
            high = field.metadata["high"]
            return default + 1 if high is None or default + 1 <= high else high
        case tuple():
            return ("a", "b")
        case _ if "bool" in str(field.type):
            return True
        case _:
            return "text" if "str" in str(field.type) else 7


def test_keys_may_be_spelled_as_the_flags(config: Path) -> None:
    settings = loaded(config, 'num-pages = 8\nserved-model-name = ["a", "b"]\ndrain-timeout-s = 3\nany-model-name = true')

    assert (8, ("a", "b"), 3.0, True) == (
        settings.num_pages,
        settings.served_model_name,
        settings.drain_timeout_s,
        settings.any_model_name,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "prot is no setting (did you mean port?); `layered-llm serve --help` lists all"),
        ("temperature = 1", "temperature is no setting: it is a field of each request, and a flag of `layered-llm chat` and "),
        ("[http]\nport = 1", "http is no setting"),
        ("num-pages = 1\nnum_pages = 1", "num_pages is set twice, as num_pages and as num-pages"),
        ("port = '1'", "port must be an integer, got '1'"),
        ("port = true", "port must be an integer, got True"),
        ("port = 1.0", "port must be an integer, got 1.0"),
        ("drain_timeout_s = false", "drain_timeout_s must be a number, got False"),
        ("any_model_name = 1", "any_model_name must be true or false, got 1"),
        ("model = 1", "model must be text, got 1"),
        ("served_model_name = 'a'", "served_model_name must be an array, each item text, got 'a'"),
        ("served_model_name = ['a', 1]", "served_model_name must be an array, each item text, got 1"),
        ("port = 65536", "port must be at most 65535, got 65536"),
        ("num-pages = 0", "num-pages must be at least 1, got 0"),
        ("drain_timeout_s = nan", "drain_timeout_s must be a finite number, got nan"),
        ("device = 'tpu'", "device must be one of cpu, scripted, got 'tpu'"),
        ("port =", "not a TOML file: Invalid value"),
        (f"port = {'[' * 20_000}", "not a TOML file: it is nested too deeply"),
        (f"port = {'1' * 5000}", "not a TOML file: Exceeds the limit"),
    ],
)
def test_a_wrong_key_or_value_is_refused_with_the_file_the_key_and_what_is_allowed(
    config: Path, text: str, message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(config, text)

    assert str(caught.value).startswith(f"{config}: {message}")


def test_a_file_that_is_no_text_is_refused(config: Path) -> None:
    config.write_bytes(b"model = '\xff'")

    with pytest.raises(SettingsError, match=r"llm.toml cannot be read: it is not UTF-8 at byte 9"):
        load(None, {"LAYERED_LLM_CONFIG": str(config)})


def test_a_byte_order_mark_says_nothing(config: Path) -> None:
    assert 9 == loaded(config, "\ufeffport = 9").port


@pytest.mark.parametrize("path", ["/dev/zero", "pipe"])
def test_a_file_without_an_end_is_refused_at_once(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")

    with pytest.raises(SettingsError, match=f"the configuration file {path} is a .*, not a regular file"):
        load(parse("--config", path), {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.toml", "cannot be read: No such file"),
        (".", "is a directory"),
        ("n" * 300, "cannot be read: File name too long"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        load(parse("--config", str(tmp_path / name)), {})


def test_a_command_has_defaults_of_its_own_below_the_file(config: Path) -> None:
    config.write_text("page_size = 4")

    settings = load(parse("--config", str(config)), {}, {"log_level": "warning", "page_size": 8})

    assert ("warning", 4) == (settings.log_level, settings.page_size)
