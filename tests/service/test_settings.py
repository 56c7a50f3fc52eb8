import argparse
import json
from pathlib import Path

import attrs
import pytest

from layered_llm.service.settings.settings import (
    Settings,
    SettingsError,
    add_arguments,
    cache_directory,
    child_environment,
    command_values,
    flag,
    ignored_variables,
    left_to_hypercorn,
    load,
)
from layered_llm.service.settings.settings_fields import base_type, is_tuple


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_the_command_line_goes_before_the_environment_and_that_before_the_default() -> None:
    environment = {"LAYERED_LLM_PORT": "9001", "LAYERED_LLM_PAGE_SIZE": "4"}

    settings = load(parse("--port", "9002"), environment)

    assert (9002, 4, 256) == (settings.port, settings.page_size, settings.max_running_requests)


@pytest.mark.parametrize("field", attrs.fields(Settings), ids=lambda field: field.name)
def test_every_setting_has_a_flag_and_a_help_text(field: "attrs.Attribute[object]") -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    actions = {option: action for action in parser._actions for option in action.option_strings}

    assert flag(field.name) in actions
    assert actions[flag(field.name)].help


def test_a_setting_that_is_a_path_says_so_in_the_help() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    placeholders = {option: action.metavar for action in parser._actions for option in action.option_strings}

    paths = ("--chat-template", "--certfile", "--keyfile", "--api-key-file", "--admin-key-file", "--trace-file", "--cache-dir")
    assert ["FILE"] * 6 + ["DIRECTORY"] == [placeholders[name] for name in paths]


def test_vllm_and_sglang_spellings_are_aliases() -> None:
    settings = load(parse("--max-model-len", "64", "--max-num-seqs", "2", "--model-path", "m", "--block-size", "8"), {})

    assert (64, 2, "m", 8) == (
        settings.max_seq_len_override,
        settings.max_running_requests,
        settings.model,
        settings.page_size,
    )


def test_lists_are_words_on_the_command_line_and_commas_in_the_environment() -> None:
    assert ("a", "b") == load(parse("--served-model-name", "a", "b"), {}).served_model_name
    assert ("a", "b") == load(None, {"LAYERED_LLM_SERVED_MODEL_NAME": "a, b"}).served_model_name


@pytest.mark.parametrize(("word", "value"), [("1", True), ("TRUE", True), ("off", False)])
def test_booleans_in_the_environment(word: str, value: bool) -> None:
    assert value is load(None, {"LAYERED_LLM_ANY_MODEL_NAME": word}).any_model_name


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("LAYERED_LLM_PROT", "1", "LAYERED_LLM_PORT"),
        ("LAYERED_LLM_PORT", "eight", "LAYERED_LLM_PORT"),
        ("LAYERED_LLM_PORT", "65536", "65535"),
        ("LAYERED_LLM_PORT", "-1", "at least 0"),
        ("LAYERED_LLM_ANY_MODEL_NAME", "maybe", "true or false"),
        ("LAYERED_LLM_DEVICE", "cuda", "must be one of cpu, scripted, got 'cuda': there are no kernels for GPUs yet"),
        ("LAYERED_LLM_TENSOR_PARALLEL_SIZE", "2", "at most 1, got 2: a model is not split over several ranks yet"),
        ("LAYERED_LLM_HEARTBEAT_INTERVAL_S", "inf", "LAYERED_LLM_HEARTBEAT_INTERVAL_S must be a finite"),
        ("LAYERED_LLM_HEARTBEAT_INTERVAL_S", "nan", "LAYERED_LLM_HEARTBEAT_INTERVAL_S must be a finite"),
        ("LAYERED_LLM_HEARTBEAT_INTERVAL_S", "0", "LAYERED_LLM_HEARTBEAT_INTERVAL_S must be at least 0.01"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_allowed(variable: str, value: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(None, {variable: value})


OF_KUBERNETES = {
    "LAYERED_LLM_PORT": "tcp://10.0.0.1:8000",
    "LAYERED_LLM_SERVICE_HOST": "10.0.0.1",
    "LAYERED_LLM_SERVICE_PORT": "8000",
    "LAYERED_LLM_SERVICE_PORT_HTTP": "8000",
    "LAYERED_LLM_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "LAYERED_LLM_PORT_8000_TCP_PROTO": "tcp",
    "LAYERED_LLM_PORT_8000_TCP_PORT": "8000",
    "LAYERED_LLM_PORT_8000_TCP_ADDR": "10.0.0.1",
    "LAYERED_LLM_CANARY_PORT": "udp://10.0.0.2:53",
    "LAYERED_LLM_CANARY_SERVICE_HOST": "10.0.0.2",
    "LAYERED_LLM_CANARY_SERVICE_PORT_DNS_UDP": "53",
    "LAYERED_LLM_CANARY_PORT_53_UDP_ADDR": "10.0.0.2",
}


@pytest.mark.parametrize("name", OF_KUBERNETES)
def test_a_variable_that_kubernetes_sets_for_a_service_is_no_setting_and_is_named(name: str) -> None:
    environment = {name: OF_KUBERNETES[name], "LAYERED_LLM_PAGE_SIZE": "4", "OTHER_SERVICE_HOST": "10.0.0.3"}

    assert Settings(page_size=4) == load(None, environment)
    assert f"ignored, as Kubernetes sets them for a service: {name}" == ignored_variables(environment)


def test_all_that_kubernetes_sets_is_said_in_one_line() -> None:
    line = ignored_variables(OF_KUBERNETES)

    assert Settings() == load(None, OF_KUBERNETES)
    assert (1, []) == (len(line.splitlines()), [name for name in OF_KUBERNETES if name not in line])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LAYERED_LLM_PORT", "tcp:10.0.0.1:8000"),
        ("LAYERED_LLM_HOSTS", "tcp://10.0.0.1:8000"),
        ("LAYERED_LLM_SERVICE", "10.0.0.1"),
        ("LAYERED_LLM_SERVICE_HOSTS", "10.0.0.1"),
        ("LAYERED_LLM_PORT_TCP", "8000"),
        ("LAYERED_LLM_PORT_8000", "tcp://10.0.0.1:8000"),
        ("LAYERED_LLM_PORT_8000_TCPX", "tcp://10.0.0.1:8000"),
    ],
)
def test_what_only_looks_like_a_services_variable_is_refused(name: str, value: str) -> None:
    assert "" == ignored_variables({name: value})
    with pytest.raises(SettingsError, match=f"^{name} "):
        load(None, {name: value})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LAYERED_LLM_PROT", "LAYERED_LLM_PROT is no setting (did you mean LAYERED_LLM_PORT?)"),
        ("LAYERED_LLM_TEMPERATURE", "LAYERED_LLM_TEMPERATURE is no setting (did you mean LAYERED_LLM_CHAT_TEMPERATURE?)"),
        ("LAYERED_LLM_STOP", "LAYERED_LLM_STOP is no setting: it is a field of each request"),
        ("LAYERED_LLM_XYZ", "LAYERED_LLM_XYZ is no setting"),
    ],
)
def test_a_misspelt_variable_is_answered_with_what_is_like_it_and_where_all_are(name: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, {name: "1"})
    assert f"{said}; `layered-llm serve --help` lists all" == str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "cuda"), "--device must be one of cpu, scripted, got 'cuda': there are no kernels for GPUs yet"),
        (("--tensor-parallel-size", "2"), "--tensor-parallel-size must be at most 1, got 2: a model is not split"),
        (("--log-level", "loud"), "--log-level must be one of debug, info, warning, error, got 'loud'"),
    ],
)
def test_a_wrong_flag_is_refused_with_what_is_allowed(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(parse(*words), {})


@pytest.mark.parametrize(
    ("words", "environment"),
    [(("--log-level", "DEBUG"), {}), ((), {"LAYERED_LLM_LOG_LEVEL": "Debug"}), ((), {"LAYERED_LLM_LOG_LEVEL": "debug"})],
)
def test_choices_may_be_written_in_capitals(words: tuple[str, ...], environment: dict[str, str]) -> None:
    assert "debug" == load(parse(*words), environment).log_level


def test_a_single_rank_may_be_asked_for() -> None:
    assert 1 == load(parse("--tp-size", "1"), {}).tensor_parallel_size


def test_settings_travel_to_other_processes_unchanged() -> None:
    settings = load(parse("--served-model-name", "a", "b", "--num-pages", "7"), {})

    assert settings == Settings.from_json(settings.to_json())


def test_engine_processes_get_settings_from_their_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERED_LLM_PORT", "1")
    monkeypatch.setenv("OTHER", "kept")

    environment = child_environment()

    assert ("kept", None) == (environment.get("OTHER"), environment.get("LAYERED_LLM_PORT"))


@pytest.mark.parametrize(("own", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_of_engine_processes_sleep_while_they_wait_unless_told_otherwise(
    own: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    assert expected == child_environment()["OMP_WAIT_POLICY"]


def test_an_empty_variable_counts_as_unset() -> None:
    settings = load(None, {"LAYERED_LLM_MODEL": "", "LAYERED_LLM_PORT": ""})

    assert (None, 8000) == (settings.model, settings.port)


def test_what_is_shown_is_the_settings_own_and_can_be_written_as_json() -> None:
    shown = json.loads(json.dumps(Settings(served_model_name=("a", "b"), port=9).shown()))

    assert (["a", "b"], 9) == (shown["served_model_name"], shown["port"])


def test_no_secret_is_shown() -> None:
    shown = Settings(api_key=("sk-alpha",)).shown()

    assert "api_key" not in shown
    assert "sk-alpha" not in str(shown)


def test_a_user_without_a_home_has_no_cache_but_may_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_user: int) -> None:
        raise KeyError

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    named = load(environment={"LAYERED_LLM_CACHE_DIR": "/var/cache/here"})

    assert (None, Path("/var/cache/here")) == (cache_directory(load(environment={})), cache_directory(named))


NO_TEXT = "a\udcff"


@pytest.mark.parametrize(
    "name", [field.name for field in attrs.fields(Settings) if base_type(field) is str and not field.metadata["choices"]]
)
@pytest.mark.parametrize(("text", "message"), [(NO_TEXT, "must be UTF-8 text"), ("a\0b", "must not hold a zero byte")])
def test_no_setting_takes_what_no_message_can_carry(name: str, text: str, message: str) -> None:
    """Bytes of the system that are no UTF-8 are lone surrogates in Python, which no encoder of messages takes."""
    value = (text,) if is_tuple(next(field for field in attrs.fields(Settings) if field.name == name)) else text
    with pytest.raises(SettingsError, match=f"^{flag(name)} {message}") as caught:
        Settings(**{name: value})  # type: ignore[arg-type] # checked by the class
    assert str(caught.value).encode()


def test_a_variable_of_the_environment_that_is_no_text_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^LAYERED_LLM_MODEL must be UTF-8 text, got 'a") as caught:
        load(None, {"LAYERED_LLM_MODEL": NO_TEXT})
    assert str(caught.value).encode()


def test_a_secret_that_is_no_text_is_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, {"LAYERED_LLM_API_KEY": NO_TEXT})
    assert "LAYERED_LLM_API_KEY must be UTF-8 text" == str(caught.value)


def test_a_variable_of_a_commands_flag_that_is_no_text_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^LAYERED_LLM_CHAT_SYSTEM must be UTF-8 text$"):
        command_values("chat", (), None, {"LAYERED_LLM_CHAT_SYSTEM": NO_TEXT})


def test_what_hypercorn_has_in_its_own_place_is_said_to_have_no_effect_there() -> None:
    assert "" == left_to_hypercorn(Settings(num_pages=64))
    assert (
        "ignored under hypercorn: host, port; it listens where --bind says: hypercorn --bind HOST:PORT layered_llm.app"
        == left_to_hypercorn(Settings(host="0.0.0.0", port=9000))
    )
