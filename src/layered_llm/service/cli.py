"""The command line: `layered-llm [serve]`, `layered-llm bench`.

Must not know: what a command does beyond its arguments.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from layered_llm.client.bench import add_bench_arguments, run_bench
from layered_llm.service.settings import SettingsError, add_arguments, load

EXIT_USAGE: Final = 2
_DEFAULT_COMMAND: Final = "serve"
_EPILOG: Final = """\
Every flag of `serve` can be set in the environment: --num-pages as LAYERED_LLM_NUM_PAGES, and so on. That is how
`hypercorn layered_llm.app` is configured. The command line goes before the environment.

examples:
  layered-llm                                        the default model on http://127.0.0.1:8000/v1
  layered-llm serve --model ./Qwen3-0.6B --port 9000
  layered-llm bench http://127.0.0.1:8000 --help
"""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="layered-llm",
        description="Serves a large language model over an OpenAI-compatible HTTP API.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="start the server (the default command)",
        description="Starts the server.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(serve)
    bench = commands.add_parser("bench", help="measure a running server, of any OpenAI-compatible kind")
    add_bench_arguments(bench)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    given = list(sys.argv[1:] if words is None else words)
    parser = build_parser()
    arguments = parser.parse_args(_with_command(given))
    return run_bench(arguments) if arguments.command == "bench" else _serve(arguments)


def _serve(arguments: argparse.Namespace) -> int:
    try:
        settings = load(arguments)
    except SettingsError as error:
        sys.stderr.write(f"layered-llm: {error}\n")
        return EXIT_USAGE
    from layered_llm.service.serve import run_server  # noqa: PLC0415 - `--help` and a wrong flag must not wait for imports

    return run_server(settings)


def _with_command(words: list[str]) -> list[str]:
    """`serve` may be left out."""
    is_named = bool(words) and words[0] in ("serve", "bench", "-h", "--help")
    return words if is_named else [_DEFAULT_COMMAND, *words]
