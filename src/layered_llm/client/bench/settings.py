"""The flags of the benchmark, and the settings that they stand for.

Must not know: how a benchmark runs.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from layered_llm.client.bench.load import ClosedLoop, Limits, OpenLoop, Pattern
from layered_llm.client.bench.prompts import WordRange
from layered_llm.client.bench.sender import Endpoint
from layered_llm.client.stream_core import StreamTimeouts

DESCRIPTION: Final = "Measure latency and throughput of any OpenAI-compatible server by streaming from it."
_DEFAULT_REQUESTS: Final = 100
_PLOT_SUFFIXES: Final = (".png", ".svg", ".pdf")

EXAMPLES: Final = """\
examples:
  how fast is it for 8 users who each wait for their answer?
      %(prog)s http://127.0.0.1:8000 --concurrency 8
  how does it hold up when 5 requests arrive per second, whatever happens?
      %(prog)s http://127.0.0.1:8000 --rate 5 --duration 60
  long prompts, answers of exactly 256 tokens, everything kept for later
      %(prog)s http://127.0.0.1:8000/v1 --prompt-words 2000 --output-tokens 256 --ignore-eos --json run.json --plot run.png
  what does the prefix cache save?
      %(prog)s http://127.0.0.1:8000 --shared-prefix-words 1000 --prompt-words 20-50
  your own prompts, one per line (or one JSON value per line in a .jsonl file)
      %(prog)s https://api.example.com --api-key KEY --model NAME --prompts questions.txt

Ctrl-C ends a run early and reports what it has. The exit status is 0 when every request completed, 1 when some failed,
2 when nothing could be measured, 130 after Ctrl-C.
"""


@attrs.frozen(kw_only=True)
class BenchSettings:
    """All that a run depends on."""

    url: str
    api_key: str | None = attrs.field(repr=False)
    model: str | None
    endpoint: Endpoint
    timeouts: StreamTimeouts
    parameters: Mapping[str, Any]
    """Fields of each request's body beside the model and the prompt."""
    pattern: Pattern
    limits: Limits
    warmup_requests: int
    seed: int
    prompt_file: Path | None
    words: WordRange
    shared_prefix_words: int
    json_file: Path | None
    plot_file: Path | None
    shows_progress: bool


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {text}")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text}")
    return value


def _word_range(text: str) -> WordRange:
    low, separator, high = text.partition("-")
    words = WordRange(low=_positive_int(low), high=_positive_int(high if separator else low))
    if words.low > words.high:
        raise argparse.ArgumentTypeError(f"the first number must not be the larger one, got {text}")
    return words


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def _output_file(text: str) -> Path:
    # A run may take an hour: a folder that does not exist is better found before it than after it.
    path = Path(text)
    try:
        is_writable = path.parent.is_dir() and not path.is_dir()
    except OSError:  # as of a name that is too long
        is_writable = False
    if not is_writable:
        raise argparse.ArgumentTypeError(f"cannot be written: {text}")
    return path


def _plot_file(text: str) -> Path:
    path = _output_file(text)
    if path.suffix not in _PLOT_SUFFIXES:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(_PLOT_SUFFIXES)}, got {text}")
    return path


@attrs.frozen
class _Flag:
    name: str
    kind: Callable[[str], Any] | tuple[str, ...] | None
    """What makes a value of a text, or the values that there are; None for a switch."""
    default: Any
    metavar: str | None
    help: str

    def add_to(self, group: "argparse._ArgumentGroup") -> None:
        match self.kind:
            case None:
                group.add_argument(self.name, action="store_true", help=self.help)
            case tuple():
                group.add_argument(self.name, choices=self.kind, default=self.default, help=self.help)
            case kind:
                group.add_argument(self.name, type=kind, default=self.default, metavar=self.metavar, help=self.help)


_FLAGS: Final = {
    "server": (
        _Flag("--model", str, None, "NAME", "model to ask for (default: the first one that the server lists)"),
        _Flag("--endpoint", tuple(item.value for item in Endpoint), "chat", None, "endpoint to measure (default: %(default)s)"),
        _Flag("--api-key", str, None, "KEY", "sent as a bearer token"),
        _Flag(
            *("--first-token-timeout", _positive_float, 600.0, "SECONDS"),
            "give a request up when no token came for so long (default: %(default)g)",
        ),
        _Flag(
            *("--idle-timeout", _positive_float, 120.0, "SECONDS"),
            "give a request up when its stream stalls for so long (default: %(default)g)",
        ),
    ),
    "load": (
        _Flag(
            *("--concurrency", _positive_int, 8, "N"),
            "closed loop: N clients, each waits for its answer before it asks again (default: %(default)s)",
        ),
        _Flag("--rate", _positive_float, None, "R", "open loop: R requests per second on average, at random (Poisson) times"),
        _Flag(
            *("--requests", _positive_int, None, "N"),
            f"end after N requests (default: {_DEFAULT_REQUESTS}, or no limit with --duration)",
        ),
        _Flag("--duration", _positive_float, None, "SECONDS", "begin no request after so long"),
        _Flag("--warmup", _count, 1, "N", "requests before the measurement, one by one (default: %(default)s)"),
        _Flag("--seed", int, 0, "N", "of arrival times and synthetic prompts: the same seed asks the same (default: 0)"),
    ),
    "prompts and answers": (
        _Flag(
            *("--prompts", Path, None, "FILE"),
            'one prompt per line, over and over; in a .jsonl file a string, {"prompt": "…"} or {"messages": […]}',
        ),
        _Flag(
            *("--prompt-words", _word_range, WordRange(low=128, high=128), "N[-M]"),
            "without a file: prompts of N (to M) random words (default: 128)",
        ),
        _Flag("--shared-prefix-words", _count, 0, "N", "begin all synthetic prompts with the same N words"),
        _Flag("--output-tokens", _positive_int, 128, "N", "most tokens of an answer (default: %(default)s)"),
        _Flag("--ignore-eos", None, False, None, "make each answer as long as --output-tokens, if the server can"),
        _Flag("--temperature", float, 0.0, "X", "of each request (default: %(default)g)"),
        _Flag("--extra-body", _json_object, {}, "JSON", "further fields of each request; they win over the above"),
    ),
    "output": (
        _Flag("--json", _output_file, None, "FILE", "file for settings, summary and every request's times"),
        _Flag(
            *("--plot", _plot_file, None, "FILE.png"),
            "picture of latencies and a timeline (needs the extra: pip install 'layered-llm[plot]')",
        ),
        _Flag("--no-progress", None, False, None, "keep standard error silent while the run goes on"),
    ),
}
"""By the titles of their groups."""


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the benchmark, a description and examples to `parser`."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("url", metavar="URL", help="the server, with or without /v1")
    for title, flags in _FLAGS.items():
        group = parser.add_argument_group(title)
        either = group.add_mutually_exclusive_group() if title == "load" else group
        for flag in flags:
            flag.add_to(either if flag.name in ("--concurrency", "--rate") else group)


def read_settings(args: argparse.Namespace) -> BenchSettings:
    """The settings that parsed flags stand for."""
    requests = args.requests if args.requests is not None or args.duration is not None else _DEFAULT_REQUESTS
    parameters = {"max_tokens": args.output_tokens, "temperature": args.temperature}
    if args.ignore_eos:
        parameters["ignore_eos"] = True
    return BenchSettings(
        url=args.url,
        api_key=args.api_key,
        model=args.model,
        endpoint=Endpoint(args.endpoint),
        timeouts=StreamTimeouts(first_token_s=args.first_token_timeout, idle_s=args.idle_timeout),
        parameters={**parameters, **args.extra_body},
        pattern=ClosedLoop(clients=args.concurrency) if args.rate is None else OpenLoop(rate_per_s=args.rate),
        limits=Limits(requests=requests, duration_s=args.duration),
        warmup_requests=args.warmup,
        seed=args.seed,
        prompt_file=args.prompts,
        words=args.prompt_words,
        shared_prefix_words=args.shared_prefix_words,
        json_file=args.json,
        plot_file=args.plot,
        shows_progress=not args.no_progress,
    )
