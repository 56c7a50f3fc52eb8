"""End-to-end throughput of a server with one and with several streams at a time."""

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import trio
from benchmarks.beside import EXPLANATION, THIS, Checkout, Pair, add_arguments, compare, rounds_of
from benchmarks.machine import Machine, this_machine
from benchmarks.server_process import local_server

from layered_llm.client import AsyncChatClient
from layered_llm.client.bench.load import ClosedLoop, Limits, run_closed_loop
from layered_llm.client.bench.prompts import WordRange, synthetic_prompts
from layered_llm.client.bench.records import Tally
from layered_llm.client.bench.sender import Endpoint, StreamSender
from layered_llm.client.bench.statistics import Distribution, Summary, summarize

HELP = (
    """\
Starts the server with its default model, or takes the one at --url, and asks it for text completions over streams: short
prompts of random words, no two the same, a fixed number of tokens each, greedy, end tokens ignored. N clients each wait for
their answer before they ask again. The counts of clients take turns in every round, so that a disturbance hits all of them.

Settings of a server that is started here come from the environment: LAYERED_LLM_THREADS=1 python -m benchmarks.serving

Read it so:
  tokens/s        output tokens of all clients by wall time, prefill and HTTP included: the median of the rounds, and the range
  ratio           tokens/s by those of the first count of clients in the same round; batching should make 8 clients get at
                  least 2.5 times the tokens of one
  first token     from sending the request to its first text (TTFT)
  between chunks  from one piece of text to the next (inter-token latency, where a piece is a token)
  per token       the mean time of a token after the first; less than the column before where pieces hold several tokens
Latencies are medians of one round's requests; shown is the median of the rounds.

With --beside CHECKOUT, tokens/s of both servers:
"""
    + EXPLANATION
)
PROMPT_WORDS = WordRange(low=6, high=12)


@attrs.frozen(kw_only=True)
class Load:
    """What is asked in one measurement."""

    clients: int
    requests: int
    output_tokens: int


@attrs.frozen(kw_only=True)
class Result:
    """All rounds of one count of clients."""

    clients: int
    rounds: Sequence[Summary]

    @property
    def tokens_per_s(self) -> list[float]:
        return [summary.output_tokens_per_s for summary in self.rounds]


@attrs.frozen(kw_only=True)
class Row:
    """One line of the table."""

    clients: int
    tokens_per_s: float
    lowest: float
    highest: float
    ratio: float
    first_token_ms: float
    between_chunks_ms: float
    per_token_ms: float


def main() -> None:
    arguments = parse()
    if arguments.beside is not None:
        raise SystemExit(not beside(arguments.beside, arguments))
    machine = this_machine()
    with server_url(arguments.url) as url:
        results = trio.run(measure, url, arguments)
    rows = [row(result, results[0]) for result in results]
    title = f"{arguments.tokens} tokens an answer, {arguments.rounds} rounds; {machine}"
    print(f"{title}\n\n{table(rows)}")
    if arguments.json is not None:
        report = report_json(machine, arguments, rows, results)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        save_plot(title, results, arguments.plot)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", metavar="URL", help="a server that runs already (default: start one)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8], metavar="N", help="requests at a time (default: 1 8)")
    parser.add_argument("--rounds", type=int, metavar="N", help="measurements of each (default: 5, with --beside 7)")
    parser.add_argument("--requests", type=int, default=2, metavar="N", help="requests of a client in a round (default: 2)")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="output tokens of a request (default: 64)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings, table and all rounds to FILE")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw throughput by clients into FILE (.png, .svg, …; needs matplotlib)"
    )
    add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.beside is None:
        arguments.rounds = arguments.rounds or 5
    return arguments


def beside(other: Checkout, arguments: argparse.Namespace) -> bool:
    """Measures this tree's server and the other's, both running; whether this one is as fast."""
    with local_server(environment=THIS.environment) as this, local_server(environment=other.environment) as that:
        measure_this, measure_other = tokens_per_s(this.url, arguments), tokens_per_s(that.url, arguments)
        for measure_once in (measure_this, measure_other):
            measure_once(max(arguments.clients))
        pairs = [
            Pair(
                name=f"HTTP, {clients} at a time",
                unit="tokens/s",
                more_is_better=True,
                this=partial(measure_this, clients),
                other=partial(measure_other, clients),
            )
            for clients in arguments.clients
        ]
        rounds = rounds_of(arguments)
        return compare(other, pairs, rounds=rounds, bound=arguments.bound, json_file=arguments.json)


def tokens_per_s(url: str, arguments: argparse.Namespace) -> Callable[[int], float]:
    """Of one measurement with as many clients; each call asks what was not asked before."""
    random = Random(0)

    async def once(clients: int) -> float:
        async with AsyncChatClient(url) as client:
            load = Load(clients=clients, requests=arguments.requests, output_tokens=arguments.tokens)
            return (await run_load(client, (await client.models())[0], random, load)).output_tokens_per_s

    def measure_once(clients: int) -> float:
        return trio.run(once, clients)

    return measure_once


@contextlib.contextmanager
def server_url(given: str | None) -> Iterator[str]:
    if given is not None:
        yield given
        return
    sys.stderr.write("starting the server\n")
    with local_server() as server:
        sys.stderr.write(f"ready after {server.start_s:.1f} s\n")
        yield server.url


async def measure(url: str, arguments: argparse.Namespace) -> list[Result]:
    random = Random(0)
    async with AsyncChatClient(url) as client:
        model = (await client.models())[0]
        await run_load(client, model, random, Load(clients=max(arguments.clients), requests=1, output_tokens=8))
        rounds: dict[int, list[Summary]] = {clients: [] for clients in arguments.clients}
        for number in range(1, arguments.rounds + 1):
            for clients, summaries in rounds.items():
                load = Load(clients=clients, requests=arguments.requests, output_tokens=arguments.tokens)
                summaries.append(await run_load(client, model, random, load))
                rate = summaries[-1].output_tokens_per_s
                sys.stderr.write(f"round {number}/{arguments.rounds}, {clients:>3} at a time: {rate:.1f} tokens/s\n")
    return [Result(clients=clients, rounds=summaries) for clients, summaries in rounds.items()]


async def run_load(client: AsyncChatClient, model: str, random: Random, load: Load) -> Summary:
    """Exits when a request fails: the rest would be a measurement of something else."""
    parameters = {"temperature": 0, "max_tokens": load.output_tokens, "ignore_eos": True}
    sender = StreamSender(client=client, endpoint=Endpoint.COMPLETIONS, model=model, parameters=parameters)
    limits = Limits(requests=load.clients * load.requests, duration_s=None)
    tally = Tally()
    await run_closed_loop(synthetic_prompts(random, PROMPT_WORDS), ClosedLoop(clients=load.clients), limits, sender, tally)
    summary = summarize(tally.close(interrupted=False))
    for error in summary.errors:
        raise SystemExit(f"{error.count} requests failed: {error.kind}: {error.example}")
    return summary


def row(result: Result, base: Result) -> Row:
    ratios = [rate / base_rate for rate, base_rate in zip(result.tokens_per_s, base.tokens_per_s, strict=True)]
    return Row(
        clients=result.clients,
        tokens_per_s=statistics.median(result.tokens_per_s),
        lowest=min(result.tokens_per_s),
        highest=max(result.tokens_per_s),
        ratio=statistics.median(ratios),
        first_token_ms=median_ms([summary.time_to_first_token_s for summary in result.rounds]),
        between_chunks_ms=median_ms([summary.gap_between_chunks_s for summary in result.rounds]),
        per_token_ms=median_ms([summary.time_per_output_token_s for summary in result.rounds]),
    )


def median_ms(distributions: Sequence[Distribution | None]) -> float:
    """NaN where no round has such a time: with one token there is no gap."""
    medians_s = [distribution.p50 for distribution in distributions if distribution is not None]
    return statistics.median(medians_s) * 1e3 if medians_s else float("nan")


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'clients':>8}{'tokens/s':>10}{'range':>16}{'ratio':>8}{'first token':>14}{'between chunks':>17}{'per token':>12}",
        f"{'':>8}{'':>10}{'':>16}{'':>8}{'ms':>14}{'ms':>17}{'ms':>12}",
    ]
    for line in rows:
        spread = f"{line.lowest:.1f} - {line.highest:.1f}"
        lines.append(
            f"{line.clients:>8}{line.tokens_per_s:>10.1f}{spread:>16}{line.ratio:>8.2f}"
            f"{line.first_token_ms:>14.1f}{line.between_chunks_ms:>17.1f}{line.per_token_ms:>12.1f}"
        )
    return "\n".join(lines)


def report_json(
    machine: Machine, arguments: argparse.Namespace, rows: Sequence[Row], results: Sequence[Result]
) -> dict[str, Any]:
    return {
        "machine": attrs.asdict(machine),
        "settings": {name: getattr(arguments, name) for name in ("url", "clients", "rounds", "requests", "tokens")},
        "table": [attrs.asdict(line) for line in rows],
        "rounds": [attrs.asdict(result) for result in results],
    }


def save_plot(title: str, results: Sequence[Result], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    clients = [result.clients for result in results]
    axes.plot(clients, [statistics.median(result.tokens_per_s) for result in results], label="median of the rounds")
    axes.scatter(
        [result.clients for result in results for _ in result.rounds],
        [rate for result in results for rate in result.tokens_per_s],
        label="one round",
        color="tab:orange",
        zorder=3,
    )
    axes.set(xlabel="clients", ylabel="output tokens/s", ylim=(0, None), xticks=clients, title=title)
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
