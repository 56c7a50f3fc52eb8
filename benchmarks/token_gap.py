"""What a bound on the gap between tokens costs: a stream that goes on while long prompts come, with the bound and without."""

import argparse
import contextlib
import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs
import trio
from benchmarks.machine import Machine, this_machine
from benchmarks.prefix_cache import random_ids
from benchmarks.server_process import local_server

from layered_llm.client import AsyncChatClient
from layered_llm.client.bench.statistics import Distribution, describe
from layered_llm.service.settings.settings import Settings

HELP = """\
Starts two servers with the default model, one with default settings and one with --max-token-gap-ms 0. Each is sent prompts of
random tokens, one behind the other: the next as soon as the one before has its only token; first alone, then beside one stream
that decodes all the time. The two take turns, so that a disturbance hits both; the one whose turn it is not has nothing to do.

Settings of both servers come from the environment: LAYERED_LLM_THREADS=1 python -m benchmarks.token_gap

Read it so:
  gap p50, p99    time between two pieces of the stream while prompts come, all rounds together
  p99 / bound     the bound is to be kept within 1.3 of itself
  at start        longest gap while the first prompts after the server's start come
  prefill         prompt tokens that were computed in a second beside the stream: the median of the rounds
  of unbounded    the same by that of the other server in the same round: at least 0.95 is the aim
  alone           prompt tokens in a second without a stream, and by those of the other server: at least 0.95 is the aim
  first token     from sending a prompt to its token beside the stream (TTFT), the median of all
"""
STREAM_PROMPT = "Here is a long story about a village at the sea:"
STREAM_TOKENS = 4000
UNBOUNDED_MS = 0.0


@attrs.define
class Round:
    """One server's turn. All times are of one clock."""

    seconds: float
    token_s: list[float] = attrs.field(factory=list)
    """When the stream's pieces came while prompts did."""
    ttft_s: list[float] = attrs.field(factory=list)
    prompt_tokens: int = 0
    """Of the prompts that were answered."""
    alone_s: float = 0.0
    """Time of as many prompts without a stream."""
    alone_tokens: int = 0

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.token_s)]

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.prompt_tokens / sum(self.ttft_s) if self.ttft_s else 0.0

    @property
    def alone_tokens_per_s(self) -> float:
        return self.alone_tokens / self.alone_s if self.alone_s else 0.0


@attrs.frozen(kw_only=True)
class Row:
    """One line of the table."""

    bound_ms: float
    gap_s: Distribution
    first_gap_s: float
    prefill_tokens_per_s: float
    of_unbounded: float
    alone_tokens_per_s: float
    alone_of_unbounded: float
    ttft_s: Distribution


def main() -> None:
    arguments = parse()
    machine = this_machine()
    rounds, first_gaps_s = measure(arguments)
    rows = [row(bound_ms, first_gaps_s[bound_ms], turns, rounds[UNBOUNDED_MS]) for bound_ms, turns in rounds.items()]
    title = f"prompts of {arguments.prompt_tokens} tokens beside one stream, {arguments.rounds} rounds; {machine}"
    print(f"{title}\n\n{table(rows)}\n\n{verdict(rows[0])}")
    if arguments.json is not None:
        report = report_json(machine, arguments, rows, rounds)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        save_plot(title, rounds, arguments.plot)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.token_gap", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    bound_ms = Settings().max_token_gap_ms
    parser.add_argument(
        "--bound-ms",
        type=float,
        default=bound_ms,
        metavar="X",
        help=f"--max-token-gap-ms (default: {bound_ms:g}, the server's)",
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each server (default: 3)")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="X", help="length of a turn (default: 20)")
    parser.add_argument("--prompt-tokens", type=int, default=1600, metavar="N", help="length of a prompt (default: 1600)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings, table and all rounds to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the gaps into FILE (.png, .svg, …; needs matplotlib)")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> tuple[dict[float, list[Round]], dict[float, float]]:
    """The rounds of each bound, and the longest gap of each server's first prompts."""
    bounds_ms = (arguments.bound_ms, UNBOUNDED_MS)
    rounds: dict[float, list[Round]] = {bound_ms: [] for bound_ms in bounds_ms}
    first_gaps_s: dict[float, float] = {}
    random = Random(0)
    with contextlib.ExitStack() as stack:
        urls = {bound_ms: stack.enter_context(server(bound_ms)) for bound_ms in bounds_ms}
        for bound_ms, url in urls.items():
            first = Round(arguments.seconds / 4)
            trio.run(play, url, random, first, arguments.prompt_tokens)
            first_gaps_s[bound_ms] = max(first.gaps_s, default=0.0)
        for number in range(1, arguments.rounds + 1):
            for bound_ms, url in urls.items():
                turn = Round(arguments.seconds)
                trio.run(play_alone, url, random, turn, arguments.prompt_tokens)
                trio.run(play, url, random, turn, arguments.prompt_tokens)
                rounds[bound_ms].append(turn)
                rate, gap_s = turn.prefill_tokens_per_s, max(turn.gaps_s, default=0.0)
                sys.stderr.write(f"round {number}, bound {bound_ms:g} ms: {rate:.0f} tokens/s, longest gap {gap_s:.2f} s\n")
    return rounds, first_gaps_s


@contextlib.contextmanager
def server(bound_ms: float) -> Iterator[str]:
    with local_server("--max-token-gap-ms", f"{bound_ms:g}") as ready:
        yield ready.url


async def play_alone(url: str, random: Random, turn: Round, prompt_tokens: int) -> None:
    """A quarter of the turn without a stream."""
    async with AsyncChatClient(url) as client:
        model = (await client.models())[0]
        while turn.alone_s < turn.seconds / 4:
            started_s = trio.current_time()
            await send_prompt(client, model, random_ids(random, prompt_tokens))
            turn.alone_s += trio.current_time() - started_s
            turn.alone_tokens += prompt_tokens


async def play(url: str, random: Random, turn: Round, prompt_tokens: int) -> None:
    """Until the turn's time is over and the last prompt has its token."""
    async with AsyncChatClient(url) as client, trio.open_nursery() as nursery:
        model = (await client.models())[0]
        flowing = trio.Event()
        nursery.start_soon(read_stream, client, model, turn, flowing)
        await flowing.wait()
        turn.token_s.clear()
        end_s = trio.current_time() + turn.seconds
        while trio.current_time() < end_s:
            started_s = trio.current_time()
            await send_prompt(client, model, random_ids(random, prompt_tokens))
            turn.ttft_s.append(trio.current_time() - started_s)
            turn.prompt_tokens += prompt_tokens
        nursery.cancel_scope.cancel()


async def read_stream(client: AsyncChatClient, model: str, turn: Round, flowing: trio.Event) -> None:
    parameters = {"temperature": 0, "max_tokens": STREAM_TOKENS, "ignore_eos": True}
    async with client.completion_stream(model=model, prompt=STREAM_PROMPT, **parameters) as stream:
        async for chunk in stream:
            if chunk.has_output:
                turn.token_s.append(trio.current_time())
                flowing.set()
    raise SystemExit("the stream ended before its turn: take less --seconds")


async def send_prompt(client: AsyncChatClient, model: str, prompt: Sequence[int]) -> None:
    async with client.completion_stream(model=model, prompt=prompt, temperature=0, max_tokens=1, ignore_eos=True) as stream:
        async for _ in stream:
            pass


def row(bound_ms: float, first_gap_s: float, turns: Sequence[Round], unbounded: Sequence[Round]) -> Row:
    gaps = describe(gap_s for turn in turns for gap_s in turn.gaps_s)
    ttft = describe(ttft_s for turn in turns for ttft_s in turn.ttft_s)
    if gaps is None or ttft is None:
        raise SystemExit("the turns were too short to measure anything: take more --seconds")
    pairs = list(zip(turns, unbounded, strict=True))
    return Row(
        bound_ms=bound_ms,
        gap_s=gaps,
        first_gap_s=first_gap_s,
        prefill_tokens_per_s=statistics.median(turn.prefill_tokens_per_s for turn in turns),
        of_unbounded=statistics.median(one.prefill_tokens_per_s / other.prefill_tokens_per_s for one, other in pairs),
        alone_tokens_per_s=statistics.median(turn.alone_tokens_per_s for turn in turns),
        alone_of_unbounded=statistics.median(one.alone_tokens_per_s / other.alone_tokens_per_s for one, other in pairs),
        ttft_s=ttft,
    )


def table(rows: Sequence[Row]) -> str:
    heads = {"bound": 8, "gap p50": 10, "gap p99": 10, "longest": 10, "at start": 10, "p99 / bound": 13}
    heads |= {"prefill": 10, "of unbounded": 14, "alone": 10, "of unbounded ": 14}
    units = ("ms", "ms", "ms", "ms", "ms", "", "tokens/s", "", "tokens/s", "")
    lines = [
        "".join(f"{head:>{width}}" for head, width in heads.items()) + f"{'first token':>13}",
        "".join(f"{unit:>{width}}" for unit, width in zip(units, heads.values(), strict=True)) + f"{'ms':>13}",
    ]
    for line in rows:
        gaps_ms = [1e3 * gap_s for gap_s in (line.gap_s.p50, line.gap_s.p99, line.gap_s.max, line.first_gap_s)]
        bound = f"{line.bound_ms:g}" if line.bound_ms else "none"
        kept = f"{gaps_ms[1] / line.bound_ms:.2f}" if line.bound_ms else "-"
        lines.append(
            f"{bound:>8}" + "".join(f"{gap_ms:>10.1f}" for gap_ms in gaps_ms) + f"{kept:>13}"
            f"{line.prefill_tokens_per_s:>10.1f}{line.of_unbounded:>14.2f}"
            f"{line.alone_tokens_per_s:>10.1f}{line.alone_of_unbounded:>14.2f}{1e3 * line.ttft_s.p50:>13.0f}"
        )
    return "\n".join(lines)


def verdict(bounded: Row) -> str:
    """What is asked of the server with the bound."""
    return (
        f"p99 gap / bound {1e3 * bounded.gap_s.p99 / bounded.bound_ms:.2f} (at most 1.3), prefill / unbounded "
        f"{bounded.of_unbounded:.3f} beside the stream and {bounded.alone_of_unbounded:.3f} alone (at least 0.95)"
    )


def report_json(
    machine: Machine, arguments: argparse.Namespace, rows: Sequence[Row], rounds: dict[float, list[Round]]
) -> dict[str, Any]:
    return {
        "machine": attrs.asdict(machine),
        "settings": {name: value for name, value in vars(arguments).items() if name not in {"json", "plot"}},
        "table": [attrs.asdict(line) for line in rows],
        "rounds": {f"{bound_ms:g}": [attrs.asdict(turn) for turn in turns] for bound_ms, turns in rounds.items()},
    }


def save_plot(title: str, rounds: dict[float, list[Round]], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for bound_ms, turns in rounds.items():
        gaps_ms = sorted(1e3 * gap_s for turn in turns for gap_s in turn.gaps_s)
        shares = [(place + 1) / len(gaps_ms) for place in range(len(gaps_ms))]
        (line,) = axes.step(gaps_ms, shares, where="post", label=f"bound {bound_ms:g} ms" if bound_ms else "no bound")
        if bound_ms:
            axes.axvline(bound_ms, color=line.get_color(), linestyle="--")
    axes.set(xlabel="gap between two tokens of the stream, ms", ylabel="share of gaps up to it", xscale="log")
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
