"""The command line: `layered-llm [serve | chat | bench]`.

Must not know: what a command does beyond its arguments.

A command's modules are imported when it runs, so that `--help` and a mistyped flag wait for nothing.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from layered_llm.formats.untrusted_files import is_directory, is_regular
from layered_llm.service.settings.cli_parser import EXIT_USAGE, CommandParser, say, with_dashes
from layered_llm.service.settings.settings import (
    Settings,
    SettingsError,
    add_arguments,
    command_values,
    ignored_variables,
    load,
)
from layered_llm.service.settings.settings_sources import add_config_flag, closest

PROGRAM: Final = "layered-llm"
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130

_SHELL: Final = "--shell"
_DEFAULT_COMMAND: Final = "serve"
_OVERVIEW: Final = """\
commands:
  serve [MODEL]   start a server; the command may be left out
  chat [MODEL]    chat in this terminal, with an engine of its own or with a server (--url)
  bench URL       measure a running server, of any OpenAI-compatible kind

MODEL is a Hugging Face directory, a GGUF file, or a hub id; without it SmolLM2-135M-Instruct, the default model.
`layered-llm COMMAND --help` has the options of a command.

examples:
  layered-llm                                         the default model on http://127.0.0.1:8000/v1
  layered-llm serve ./Qwen3-0.6B --port 9000          a Hugging Face directory
  layered-llm serve ./Qwen3-0.6B-Q8_0.gguf            a GGUF file
  layered-llm chat                                    or: python -m layered_llm --shell
  echo "What is the capital of France?" | layered-llm chat --temperature 0
  layered-llm bench http://127.0.0.1:8000 --concurrency 8
"""
SETTINGS_HELP: Final = """\
A setting can be given in four places; the first that has it counts:
  1. its flag            --num-pages 512
  2. the environment     LAYERED_LLM_NUM_PAGES=512; lists are separated by commas
  3. a TOML file         num_pages = 512 (or num-pages), named by --config FILE or LAYERED_LLM_CONFIG; lists are arrays
  4. the default
The flags that only chat has are LAYERED_LLM_CHAT_SYSTEM … in 2, and keys of the table [chat] in 3; those of bench likewise.
"""
_BENCH_SETTINGS_HELP: Final = """\
A flag goes before its variable in the environment, and that before its key in the table [bench] of the TOML file.
"""
_SERVE_EPILOG: Final = f"""\
{SETTINGS_HELP}
`hypercorn layered_llm.app` starts the same server with the settings of 2 and 3.

examples:
  layered-llm serve                                   the default model on http://127.0.0.1:8000/v1
  layered-llm serve ./Qwen3-0.6B --port 9000 --served-model-name qwen3
  layered-llm serve --host 0.0.0.0 --api-key-file keys.txt --admin-key-file admin.txt
  layered-llm serve --config llm.toml --log-level debug
"""


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    code = EXIT_INTERRUPTED
    try:
        code = _run(list(sys.argv[1:] if words is None else words))
    except* KeyboardInterrupt:
        pass
    return code


def _run(words: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {"serve": _serve, "chat": _chat, "bench": _bench}
    if words and words[0] in ("-h", "--help", "--version"):
        _overview().parse(words)
    if not words or words[0].startswith("-"):
        words = [_DEFAULT_COMMAND, *words]
    name, *rest = words
    if name not in commands:
        _overview().error(_no_command(name, commands))
    return commands[name](rest)


def _overview() -> CommandParser:
    parser = CommandParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [COMMAND] [OPTIONS]",
        description="Serves a large language model over an OpenAI-compatible HTTP API, or chats with it in the terminal.",
        epilog=_OVERVIEW,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    return parser


class _Version(argparse.Action):
    """The version is looked up only where it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - see the module's docstring

        sys.stdout.write(f"{PROGRAM} {version(PROGRAM)}\n")
        parser.exit()


def _no_command(name: str, commands: dict[str, Callable[[list[str]], int]]) -> str:
    if is_regular(Path(name)) or is_directory(Path(name)):
        return f"{name} is no command; to serve that model: {PROGRAM} serve {name}"
    return f"{name} is no command{closest(name, commands)}; there are {', '.join(commands)}"


def _serve(words: list[str]) -> int:
    if _SHELL in map(with_dashes, words):
        return _chat([word for word in words if with_dashes(word) != _SHELL])
    parser = _command_parser(
        "serve [MODEL]",
        description="Serves a model over an OpenAI-compatible HTTP API, until Ctrl-C or SIGTERM.",
        epilog=_SERVE_EPILOG,
    )
    _add_model_word(parser)
    parser.add_argument(_SHELL, action="store_true", help=f"chat in the terminal instead, like `{PROGRAM} chat`")
    add_arguments(parser)
    try:
        settings = load(_with_model(parser, parser.parse(words)))
        _say_what_is_ignored()
        return _serve_with(settings)
    except SettingsError as error:
        say(str(error))
        return EXIT_USAGE


def _serve_with(settings: Settings) -> int:
    """Raises SettingsError."""
    # See the module's docstring.
    from layered_llm.service.model.settings_checks import check_before_start  # noqa: PLC0415 - as said above
    from layered_llm.service.supervisor.supervisor_process import supervisor_ahead  # noqa: PLC0415 - as said above
    from layered_llm.transport.http.hypercorn_server import listening  # noqa: PLC0415 - as said above

    check_before_start(settings)
    try:
        sockets = listening.bind_sockets(settings.host, settings.port, backlog=listening.BACKLOG)
    except listening.CannotListen as error:
        say(f"{error}; --host and --port name another place, port 0 is any free one")
        return EXIT_FAILED
    with contextlib.ExitStack() as stack:
        for sock in sockets:
            stack.enter_context(sock)
        ahead = stack.enter_context(supervisor_ahead(settings))
        from layered_llm.service.server.serve import run_server  # noqa: PLC0415 - while the engine's processes start

        return run_server(settings, sockets, ahead)


def _chat(words: list[str]) -> int:
    from layered_llm.service.chat.flags import add_chat_arguments, read_request  # noqa: PLC0415 - see the module's docstring

    parser = _command_parser("chat [MODEL]")
    _add_model_word(parser)
    add_chat_arguments(parser, SETTINGS_HELP)
    parser.tell_variables("chat")
    try:
        request = read_request(_with_model(parser, _parsed(parser, "chat", words)))
        _say_what_is_ignored()
    except SettingsError as error:
        say(str(error))
        return EXIT_USAGE
    from layered_llm.service.chat.command import run_chat  # noqa: PLC0415 - see the module's docstring

    return run_chat(request)


def _bench(words: list[str]) -> int:
    from layered_llm.client.bench import add_bench_arguments, run_bench  # noqa: PLC0415 - see the module's docstring

    parser = _command_parser("bench URL")
    add_bench_arguments(parser)
    add_config_flag(parser)
    parser.tell_variables("bench")
    parser.epilog = f"{_BENCH_SETTINGS_HELP}\n{parser.epilog}"
    try:
        arguments = _parsed(parser, "bench", words)
        _say_what_is_ignored()
    except SettingsError as error:
        say(str(error))
        return EXIT_USAGE
    return run_bench(arguments)


def _say_what_is_ignored() -> None:
    line = ignored_variables()
    if line:
        say(line)


def _parsed(parser: CommandParser, command: str, words: list[str]) -> argparse.Namespace:
    """The arguments; what they leave open is taken from environment and file. Raises SettingsError."""
    arguments = parser.parse(words)
    parser.prefer(command_values(command, parser.names_in(words), getattr(arguments, "config", None)))
    return parser.parse(words)


def _command_parser(synopsis: str, description: str = "", epilog: str = "") -> CommandParser:
    name = synopsis.partition(" ")[0]
    usage = f"{PROGRAM} {synopsis} [OPTIONS]"
    return CommandParser(prog=f"{PROGRAM} {name}", usage=usage, description=description, epilog=epilog)


def _add_model_word(parser: argparse.ArgumentParser) -> None:
    """The model as a word without a flag, as `vllm serve MODEL` has it."""
    parser.add_argument(
        "model_word",
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help="as --model MODEL: a Hugging Face directory, a GGUF file, or a hub id; without it the default model",
    )


def _with_model(parser: CommandParser, arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments, MODEL as if it had been given with its flag."""
    word = vars(arguments).pop("model_word", None)
    if word is None:
        _refuse_model_among_values(parser, arguments)
        return arguments
    if "model" in arguments:
        parser.error(f"the model is named twice: {word} and --model {arguments.model}")
    arguments.model = word
    return arguments


def _refuse_model_among_values(parser: CommandParser, arguments: argparse.Namespace) -> None:
    """A flag of several values takes a MODEL that follows it: the default model would be served, without a word."""
    for name, values in vars(arguments).items():
        match values:
            case [_, *_, last] if "model" not in arguments and _is_place(last):
                shown = f"--{name.replace('_', '-')}"
                parser.error(f"{last} was taken as one more value of {shown}; a model goes before the flags, or after --model")
            case _:
                pass


def _is_place(word: str) -> bool:
    return word.startswith(("./", "../", "~/")) or word.endswith(".gguf") or is_directory(Path(word))
