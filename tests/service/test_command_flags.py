import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from layered_llm.client.bench import add_bench_arguments
from layered_llm.client.bench.settings import BenchSettings, read_settings
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service import cli
from layered_llm.service.chat.flags import ChatRequest, add_chat_arguments, read_request
from layered_llm.service.settings.cli_parser import CommandParser
from layered_llm.service.settings.command_flags import FLAGS, variables
from layered_llm.service.settings.settings import Settings, SettingsError, command_values, load

ADD: Mapping[str, Callable[[CommandParser], None]] = {
    "chat": lambda parser: add_chat_arguments(parser, ""),
    "bench": add_bench_arguments,
}


def parser_of(command: str) -> CommandParser:
    parser = CommandParser(prog=command, description="")
    ADD[command](parser)
    return parser


def parsed(command: str, words: list[str], environment: Mapping[str, str], config: Path | None = None) -> argparse.Namespace:
    parser = parser_of(command)
    path = None if config is None else str(config)
    parser.prefer(command_values(command, parser.names_in(words), path, environment))
    return parser.parse(words)


def bench(words: str, environment: Mapping[str, str], config: Path | None = None) -> BenchSettings:
    return read_settings(parsed("bench", ["http://h", *words.split()], environment, config))


def chat(words: str, environment: Mapping[str, str], config: Path | None = None) -> ChatRequest:
    return read_request(parsed("chat", words.split(), environment, config))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("command", FLAGS)
def test_all_flags_of_a_command_that_are_no_settings_are_listed(command: str) -> None:
    actions = parser_of(command)._actions
    names = {option[2:].replace("-", "_") for action in actions for option in action.option_strings if option.startswith("--")}
    settings = {action.dest for action in actions if f"[LAYERED_LLM_{action.dest.upper()}]" in (action.help or "")}
    aliases = {
        option[2:].replace("-", "_") for action in actions if action.dest in settings for option in action.option_strings
    }
    assert names - aliases - {"help", "config"} == set(FLAGS[command])


def test_no_variable_has_two_meanings() -> None:
    settings = {f"LAYERED_LLM_{name.upper()}" for name in Settings.__annotations__}
    assert set() == settings & set(variables())


def test_a_flag_goes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    config = written(tmp_path / "llm.toml", '[chat]\nsystem = "file"\ntop-k = 3\nseed = 1\n')
    environment = {"LAYERED_LLM_CHAT_SYSTEM": "environment", "LAYERED_LLM_CHAT_TOP_K": "4"}

    request = chat("--system flag", environment, config)

    assert ("flag", 4, 1) == (request.system, request.params.top_k, request.params.seed)
    assert (None, None) == (request.params.temperature, request.params.top_p)


def test_what_a_chat_leaves_open_is_left_to_the_model() -> None:
    assert SamplingParams(max_tokens=None) == chat("", {}).params


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    config = written(tmp_path / "llm.toml", "[bench]\noutput_tokens = 7\n")
    assert 7 == bench("", {"LAYERED_LLM_CONFIG": str(config)}).parameters["max_tokens"]


def test_values_of_every_kind_are_those_of_the_flag(tmp_path: Path) -> None:
    config = written(
        tmp_path / "llm.toml",
        '[bench]\nprompt-words = "20-50"\nignore-eos = true\nextra-body = {top_k = 3}\nrate = 2\nduration = 1.5\n'
        'endpoint = "completions"\nno_progress = false\n',
    )
    words = '--prompt-words 20-50 --ignore-eos --extra-body {"top_k":3} --rate 2 --duration 1.5 --endpoint completions'
    environment = {
        "LAYERED_LLM_BENCH_PROMPT_WORDS": "20-50", "LAYERED_LLM_BENCH_IGNORE_EOS": "yes", "LAYERED_LLM_BENCH_RATE": "2",
        "LAYERED_LLM_BENCH_EXTRA_BODY": '{"top_k": 3}', "LAYERED_LLM_BENCH_DURATION": "1.5",
        "LAYERED_LLM_BENCH_ENDPOINT": "completions", "LAYERED_LLM_BENCH_MODEL": "",
    }  # fmt: skip
    assert bench(words, {}) == bench("", {}, config) == bench("", environment)


@pytest.mark.parametrize(("words", "environment"), [("--concurrency 3", {"RATE": "5"}), ("", {"CONCURRENCY": "3"})])
def test_what_excludes_a_flag_counts_no_more_than_the_flag(words: str, environment: Mapping[str, str], tmp_path: Path) -> None:
    config = written(tmp_path / "llm.toml", "[bench]\nrate = 7\n")
    variables = {f"LAYERED_LLM_BENCH_{name}": value for name, value in environment.items()}
    assert bench("--concurrency 3", {}).pattern == bench(words, variables, config).pattern


def test_a_key_in_the_environment_is_for_a_server_only() -> None:
    environment = {"LAYERED_LLM_CHAT_API_KEY": "k"}
    assert None is chat("", environment).server
    server = chat("--url http://h", environment).server
    assert server is not None
    assert "k" == server.api_key


def test_a_url_in_the_file_can_be_left_aside(tmp_path: Path) -> None:
    config = written(tmp_path / "llm.toml", '[chat]\nurl = "http://h"\n')
    assert None is not chat("", {}, config).server
    assert None is chat("--url=", {}, config).server


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"BENCH_RATE": "x"}, "LAYERED_LLM_BENCH_RATE: 'x' is no value of --rate"),
        ({"BENCH_RATE": "0"}, "LAYERED_LLM_BENCH_RATE: must be a positive number, got 0"),
        ({"BENCH_ENDPOINT": "x"}, "LAYERED_LLM_BENCH_ENDPOINT must be one of chat, completions, got 'x'"),
        ({"BENCH_IGNORE_EOS": "x"}, "LAYERED_LLM_BENCH_IGNORE_EOS must be true or false, got 'x'"),
        ({"BENCH_RAT": "1"}, r"LAYERED_LLM_BENCH_RAT is no setting \(did you mean LAYERED_LLM_BENCH_RATE\?\)"),
        (
            {"BENCH_RATE": "1", "BENCH_CONCURRENCY": "1"},
            "LAYERED_LLM_BENCH_CONCURRENCY and LAYERED_LLM_BENCH_RATE exclude each other",
        ),
    ],
)
def test_what_no_flag_takes_is_refused_by_its_place(environment: Mapping[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        bench("", {f"LAYERED_LLM_{name}": value for name, value in environment.items()})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[bench]\nrat = 1", r"llm\.toml: \[bench\] rat is no flag of bench; `layered-llm bench --help` lists all"),
        ("[chat]\nrate = 1", r"\[chat\] rate is no flag of chat"),
        ("bench = 1", "bench must be a table, got 1"),
        ("[bench]\nprompt-words = 1\nprompt_words = 2", r"\[bench\] prompt_words is set twice"),
        ("[serve]\nport = 1", "serve is no setting"),
    ],
)
def test_a_table_is_checked_by_every_command(text: str, message: str, tmp_path: Path) -> None:
    config = written(tmp_path / "llm.toml", text)
    with pytest.raises(SettingsError, match=message):
        bench("", {}, config)
    with pytest.raises(SettingsError, match=message):
        load(environment={"LAYERED_LLM_CONFIG": str(config)})


@pytest.mark.parametrize(("value", "shown"), [("true", "True"), ("[1]", r"\[1\]")])
def test_a_value_of_a_table_is_checked_where_it_is_used(value: str, shown: str, tmp_path: Path) -> None:
    config = written(tmp_path / "llm.toml", f"[bench]\nrate = {value}\n")
    with pytest.raises(SettingsError, match=rf"\[bench\] rate must be one value, and neither true nor false, got {shown}"):
        bench("", {}, config)
    assert Settings() == load(environment={"LAYERED_LLM_CONFIG": str(config)})


def test_a_server_may_share_file_and_environment_with_the_other_commands(tmp_path: Path) -> None:
    config = written(tmp_path / "llm.toml", 'port = 1\n[chat]\nsystem = "s"\n[bench]\nrate = 1\n')
    environment = {"LAYERED_LLM_CONFIG": str(config), "LAYERED_LLM_CHAT_SEED": "1", "LAYERED_LLM_CHAT_TEMPLATE": "t"}
    assert Settings(port=1, chat_template="t") == load(environment=environment)


def test_the_command_line_itself_reads_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LAYERED_LLM_BENCH_RATE", "x")
    assert 2 == cli.main(["bench", "http://h"])
    assert "layered-llm: LAYERED_LLM_BENCH_RATE: 'x' is no value of --rate\n" == capsys.readouterr().err
    monkeypatch.setenv("LAYERED_LLM_CHAT_TEMPERATURE", "x")
    assert 2 == cli.main(["chat"])
    assert "layered-llm: LAYERED_LLM_CHAT_TEMPERATURE: 'x' is no value of --temperature\n" == capsys.readouterr().err
