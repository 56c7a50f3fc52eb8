import argparse
import os
import socket
from pathlib import Path

import pytest

from layered_llm.service.server.api import build_api
from layered_llm.service.server.api_keys import read_admin_keys, read_api_keys
from layered_llm.service.settings.settings import Settings, SettingsError, add_arguments, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_without_any_there_are_none() -> None:
    assert () == read_api_keys(Settings())


def test_a_file_has_one_key_a_line_with_a_name_or_without(file: Path) -> None:
    file.write_text("# operators\n\nalice:sk-1\n  bob : sk:with:colons \nsk-3\n")

    assert (("alice", "sk-1"), ("bob", "sk:with:colons"), ("key-3", "sk-3")) == read_api_keys(Settings(api_key_file=str(file)))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("key-2:A\nB\n", ["key-2", "key-3"]),
        ("A\nkey-1:B\n", ["key-2", "key-1"]),
        ("A\nB\nkey-2:C\nD\nkey-4:E\n", ["key-1", "key-3", "key-2", "key-5", "key-4"]),
        ("key-3:A\nB\nC\n", ["key-3", "key-2", "key-4"]),
        ("key-2:A\nkey-2:B\nC\n", ["key-2", "key-2", "key-3"]),
    ],
)
def test_a_key_without_a_name_never_has_that_of_another_key(text: str, names: list[str], file: Path) -> None:
    file.write_text(text)

    assert names == [name for name, _ in read_api_keys(Settings(api_key_file=str(file)))]


@pytest.mark.parametrize("kind", ["API", "admin"])
@pytest.mark.parametrize("path", ["/dev/zero", "pipe"])
def test_a_file_without_an_end_is_refused_at_once(
    kind: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")

    with pytest.raises(SettingsError, match=f"the file of {kind} keys {path} is a .*, not a regular file"):
        {"API": read_api_keys, "admin": read_admin_keys}[kind](Settings(**{f"{kind.lower()}_key_file": path}))  # type: ignore[arg-type] # by name


def test_a_byte_order_mark_is_no_part_of_a_name(file: Path) -> None:
    file.write_text("\ufeffalice:sk-1")

    assert (("alice", "sk-1"),) == read_api_keys(Settings(api_key_file=str(file)))


def test_a_key_of_the_setting_never_has_a_name_of_the_file(file: Path) -> None:
    file.write_text("key-1:sk-2\nkey-2:sk-3")

    assert ["key-3", "key-1", "key-2"] == [
        name for name, _ in read_api_keys(Settings(api_key=("sk-1",), api_key_file=str(file)))
    ]


def test_a_variable_that_was_to_hold_keys_and_holds_none_opens_nothing() -> None:
    with pytest.raises(SettingsError, match="LAYERED_LLM_API_KEY must have a value between its commas"):
        load(None, {"LAYERED_LLM_API_KEY": " , "})


def test_keys_of_the_setting_come_before_those_of_the_file(file: Path) -> None:
    file.write_text("sk-2")

    assert (("key-1", "sk-1"), ("key-2", "sk-2")) == read_api_keys(Settings(api_key=("sk-1",), api_key_file=str(file)))


def test_admin_keys_are_named_so_that_no_other_key_can_be(file: Path) -> None:
    file.write_text("sk-a1\nops:sk-a2\n")
    settings = Settings(api_key=("sk-1",), admin_key="sk-a0", admin_key_file=str(file))

    assert (("admin:key-1", "sk-a0"), ("admin:key-2", "sk-a1"), ("admin:ops", "sk-a2")) == read_admin_keys(settings)
    assert (("key-1", "sk-1"),) == read_api_keys(settings)


@pytest.mark.parametrize("settings", [{"admin_key": "sk-secret"}, {"admin_key_file": "keys"}])
def test_an_admin_key_that_users_have_is_refused(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text("sk-admin\nsk-secret\n")

    with pytest.raises(SettingsError, match=r"the admin key key-\d is the API key key-2 as well") as caught:
        build_api(Settings(api_key=("sk-1", "sk-secret"), **settings))  # type: ignore[arg-type] # all are texts
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize("admin", [{"LAYERED_LLM_ADMIN_KEY": "sk-secret"}, {"LAYERED_LLM_ADMIN_KEY_FILE": "keys"}])
@pytest.mark.parametrize("users", [{"LAYERED_LLM_API_KEY": "sk-1,sk-secret"}, {"LAYERED_LLM_API_KEY_FILE": "users"}])
def test_it_is_refused_wherever_either_of_them_comes_from(
    admin: dict[str, str], users: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text("ops: sk-secret\n")
    (tmp_path / "users").write_text("alice:sk-secret\n")

    with pytest.raises(SettingsError, match="as well: whoever has that would be an admin"):
        build_api(load(None, admin | users))


@pytest.mark.parametrize("settings", [{"admin_key": ""}, {"admin_key": "two words"}, {"admin_key_file": "empty"}])
def test_an_admin_key_that_is_none_is_refused(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()

    with pytest.raises(SettingsError, match=r"key 1 of --admin-key: a key must|the file of admin keys has none"):
        read_admin_keys(Settings(**settings))  # type: ignore[arg-type] # all are texts


def test_an_admin_key_comes_from_the_environment_and_from_a_file_of_settings_and_is_never_shown(tmp_path: Path) -> None:
    config = tmp_path / "llm.toml"
    config.write_text('admin_key = "sk-secret"')
    for settings in (load(None, {"LAYERED_LLM_ADMIN_KEY": "sk-secret"}), load(None, {"LAYERED_LLM_CONFIG": str(config)})):
        assert "sk-secret" == settings.admin_key
        assert "sk-secret" not in f"{settings!r} {settings.to_json()} {settings.shown()}"


@pytest.mark.parametrize(
    ("settings", "host", "is_warned"),
    [
        ({}, "127.0.0.1", False),
        ({}, "0.0.0.0", True),
        ({"api_key": ("sk-1",)}, "0.0.0.0", False),
        ({"admin_key": "sk-a"}, "0.0.0.0", True),
    ],
)
def test_a_server_that_others_reach_without_a_key_warns_when_it_listens(
    settings: dict[str, object], host: str, is_warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    api = build_api(Settings(**settings))  # type: ignore[arg-type] # by name
    with socket.create_server((host, 0)) as sock:
        api.note_listening([sock])

    assert is_warned == ("warning: this server is reached from other machines" in capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has none"),
        ("# nobody\n", "has none"),
        ("alice:\n", "keys:1: a key must be visible"),
        ("sk-1\nalice:two words\n", "keys:2: a key must be visible"),
        ("al ice:sk-secret\n", "keys:1: a key's name"),
        ("alice:sk-secret\nbob:sk-secret\n", "keys:2: the key is there twice, the other one's name is alice"),
    ],
)
def test_a_file_that_would_open_the_server_wrongly_is_refused_without_showing_a_key(
    text: str, message: str, file: Path
) -> None:
    file.write_text(text)

    with pytest.raises(SettingsError, match=message) as caught:
        read_api_keys(Settings(api_key_file=str(file)))
    assert "sk-secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(SettingsError, match=r"file of API keys .*keys cannot be read: No such file"):
        read_api_keys(Settings(api_key_file=str(file)))


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="key 1 of --api-key"):
        read_api_keys(Settings(api_key=("",)))


def test_streams_are_counted_by_key_only_where_there_are_keys() -> None:
    with pytest.raises(SettingsError, match="--max-streams-per-key needs --api-key"):
        build_api(Settings(max_streams_per_key=2))


def test_prefixes_are_shared_between_keys_only_where_there_are_keys() -> None:
    with pytest.raises(SettingsError, match="--share-prefix-cache needs --api-key"):
        build_api(Settings(share_prefix_cache=True))


def test_keys_come_from_flags_and_from_the_environment() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    assert ("a", "b") == load(parser.parse_args(["--api-key", "a", "b"]), {}).api_key
    assert ("a", "b") == load(None, {"LAYERED_LLM_API_KEY": "a, b"}).api_key


def test_settings_show_no_key_and_take_none_to_other_processes() -> None:
    settings = Settings(api_key=("sk-secret",))

    assert "sk-secret" not in repr(settings)
    assert "sk-secret" not in settings.to_json()
    assert () == Settings.from_json(settings.to_json()).api_key


def test_a_wrong_value_in_a_file_of_settings_is_refused_without_showing_it(tmp_path: Path) -> None:
    config = tmp_path / "llm.toml"
    config.write_text('api_key = "sk-secret"')

    with pytest.raises(SettingsError, match="api_key must be an array") as caught:
        load(None, {"LAYERED_LLM_CONFIG": str(config)})
    assert "sk-secret" not in str(caught.value)
