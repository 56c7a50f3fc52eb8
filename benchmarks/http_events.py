"""What a streamed event costs our API process, beside applications that do nothing but stream the same bytes."""

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from benchmarks.compare_engines import peer_environment
from benchmarks.machine import Machine, this_machine
from benchmarks.processor_time import thread_seconds
from benchmarks.server_process import ReadyServer, free_port, server
from tqdm import tqdm

HELP = """\
Three servers run side by side: ours; a bare quart-trio application on hypercorn; a bare FastAPI application on uvicorn and
asyncio. N streams are open at a time, from raw sockets. Ours words its events itself, from what text workers send it; the bare
ones send a copy of one of those events, ready made, over and over.

  steady      each stream has a token every few milliseconds, so that each is an event and a send of its own. Ours is a whole
              server with a device that computes nothing
  saturated   more tokens are there than can be sent one by one: the bare applications send as fast as they can, ours, whose
              engine is a clock in the same process, is offered more than that and sends what is queued for a stream together

Read it so:
  µs / token    processor time of the server's process (of ours: the API process alone) by the tokens that all streams got,
                begin and end of the requests included: the median of the rounds, and the range
  / quart       that by the bare quart-trio application's, in the same round; the aim is at most 1.3 where it is steady
  / fastapi     that by the bare FastAPI application's; the aim is at most 1.5 where it is saturated
  tokens/s      of all streams together
  per send      tokens by reads of the client: over 1 where several come together
"""
OURS: Final = "ours"
QUART: Final = "bare quart-trio"
FASTAPI: Final = "bare FastAPI"
EVENT: Final = b"data: {"
CHUNKED_END: Final = b"0\r\n\r\n"
GIVE_UP_S: Final = 120.0
READ_BYTES: Final = 1 << 16
TAIL_BYTES: Final = 16
"""Longer than what ends a body, which may lie across two reads."""


@attrs.frozen(kw_only=True)
class Load:
    """What is asked in one measurement."""

    name: str
    streams: int
    tokens: int
    interval_ms: float
    """Between two tokens of a stream of the bare applications; 0: as fast as they can."""
    offered_ms: float | None = None
    """The same of ours, where it differs."""


@attrs.frozen(kw_only=True)
class Target:
    """A server under test, and how it is asked for a stream."""

    name: str
    load: Load
    server: ReadyServer
    path: str
    body: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Sample:
    """One measurement."""

    us_per_token: float
    tokens_per_s: float
    tokens_per_read: float


@attrs.frozen(kw_only=True)
class Row:
    """One line of the table."""

    load: str
    name: str
    samples: Sequence[Sample]
    by_quart: Sequence[float]
    by_fastapi: Sequence[float]


@attrs.define
class Counts:
    """What the client saw of all streams."""

    reads: int = 0


def main() -> None:
    arguments = parse()
    machine = this_machine()
    loads = [
        Load(name="steady", streams=arguments.streams, tokens=arguments.tokens, interval_ms=arguments.interval_ms),
        Load(
            name="saturated",
            streams=arguments.streams,
            tokens=arguments.saturated_tokens,
            interval_ms=0.0,
            offered_ms=arguments.offered_ms,
        ),
    ]
    with contextlib.ExitStack() as stack:
        targets = [target for load in loads for target in start(stack, load, arguments.peers_python.absolute())]
        samples = measure(targets, arguments.rounds)
    rows = [row(target, samples) for target in targets]
    title = f"{arguments.streams} streams, {arguments.rounds} rounds; {machine}"
    print(f"{title}\n\n{table(rows)}")
    if arguments.json is not None:
        report = report_json(machine, loads, arguments.rounds, rows)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        save_plot(title, rows, arguments.plot)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.http_events", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=32, metavar="N", help="streams at a time (default: 32)")
    parser.add_argument("--interval-ms", type=float, default=20.0, metavar="X", help="between two tokens (default: 20)")
    parser.add_argument("--tokens", type=int, default=250, metavar="N", help="of a steady stream (default: 250)")
    parser.add_argument("--saturated-tokens", type=int, default=1500, metavar="N", help="of a saturated one (default: 1500)")
    parser.add_argument(
        "--offered-ms", type=float, default=0.5, metavar="X", help="between two tokens of a saturated stream (default: 0.5)"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measurements of each (default: 5)")
    parser.add_argument(
        "--peers-python",
        type=Path,
        default=Path(".venv-peers/bin/python"),
        metavar="FILE",
        help="interpreter with FastAPI and uvicorn (default: %(default)s); left out where there is none",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings and all rounds to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table into FILE (.png, .svg, …; needs matplotlib)")
    return parser.parse_args()


def start(stack: contextlib.ExitStack, load: Load, peers_python: Path) -> list[Target]:
    """Ours first: the others send a copy of one of its events."""
    own = _run(stack, own_command(load))
    asked = {"prompt": "on and on", "max_tokens": load.tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    targets = [Target(name=OURS, load=load, server=own, path="/v1/completions", body=asked)]
    event = trio.run(one_event, targets[0])
    body = {"event": event.decode(), "events": load.tokens, "interval_ms": load.interval_ms}
    modules = [(QUART, Path(sys.executable), "bare_quart"), (FASTAPI, peers_python, "bare_fastapi")]
    for name, python, module in modules:
        if not python.exists():
            sys.stderr.write(f"left out: {name}: there is no {python}\n")
            continue
        bare = _run(stack, [str(python), "-m", f"benchmarks.peers.{module}"])
        targets.append(Target(name=name, load=load, server=bare, path="/", body=body))
    return targets


def own_command(load: Load) -> list[str]:
    """A whole server, or where an engine is no match for the clients, an API process that is given tokens by a clock."""
    if load.offered_ms is not None:
        return [sys.executable, "-m", "benchmarks.peers.own_api", str(load.offered_ms)]
    flags = ["--device", "scripted", "--scripted-output", "hash", "--scripted-step-ms", str(load.interval_ms)]
    pages = load.streams * (load.tokens // 16 + 4)
    return [sys.executable, "-m", "layered_llm", *flags, "--num-pages", str(pages), "--port"]


def _run(stack: contextlib.ExitStack, command: Sequence[str]) -> ReadyServer:
    port = str(free_port())
    return stack.enter_context(server([*command, port], f"http://127.0.0.1:{port}", peer_environment()))


def measure(targets: Sequence[Target], rounds: int) -> dict[tuple[str, str], list[Sample]]:
    """By load and server, one for each round."""
    samples: dict[tuple[str, str], list[Sample]] = {}
    with tqdm(total=rounds * len(targets), unit="measurement", file=sys.stderr, disable=None) as progress:
        for number in range(rounds):
            turn = number % len(targets)
            for target in [*targets[turn:], *targets[:turn]]:
                progress.set_description(f"{target.load.name}, {target.name}")
                samples.setdefault((target.load.name, target.name), []).append(measure_one(target))
                progress.update()
    return samples


def measure_one(target: Target) -> Sample:
    counts = Counts()
    before_s, began_s = thread_seconds(target.server.pid), time.perf_counter()
    trio.run(ask_all, target, counts)
    elapsed_s, spent_s = time.perf_counter() - began_s, thread_seconds(target.server.pid) - before_s
    tokens = target.load.streams * target.load.tokens
    return Sample(
        us_per_token=spent_s / tokens * 1e6,
        tokens_per_s=tokens / elapsed_s,
        tokens_per_read=tokens / counts.reads,
    )


async def ask_all(target: Target, counts: Counts) -> None:
    """All streams at once, to their ends."""
    with trio.fail_after(GIVE_UP_S):
        async with trio.open_nursery() as nursery:
            for _ in range(target.load.streams):
                nursery.start_soon(read_stream, target, counts)


async def read_stream(target: Target, counts: Counts) -> None:
    async with await open_stream(target) as stream:
        tail = b""
        while not tail.endswith(CHUNKED_END):
            data = await stream.receive_some(READ_BYTES)
            if not data:
                raise SystemExit(f"{target.name} ended a stream early: {tail!r}")
            counts.reads += 1
            tail = (tail + data)[-TAIL_BYTES:]


async def open_stream(target: Target) -> trio.SocketStream:
    data = json.dumps(target.body).encode()
    stream = await trio.open_tcp_stream("127.0.0.1", int(target.server.url.rpartition(":")[2]))
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    head = f"POST {target.path} HTTP/1.1\r\n{fields}\r\n\r\n"
    await stream.send_all(head.encode() + data)
    return stream


async def one_event(target: Target) -> bytes:
    """The first event with text, as it is sent."""
    data = b""
    with trio.fail_after(GIVE_UP_S):
        async with await open_stream(target) as stream:
            while data.count(b"\n\n") < 2:
                data += await stream.receive_some(READ_BYTES)
    begin = data.index(EVENT)
    return data[begin : data.index(b"\n\n", begin) + 2]


def row(target: Target, samples: Mapping[tuple[str, str], Sequence[Sample]]) -> Row:
    own = samples[target.load.name, target.name]

    def ratios(other: str) -> list[float]:
        others = samples.get((target.load.name, other), [])
        return [mine.us_per_token / their.us_per_token for mine, their in zip(own, others, strict=False)]

    return Row(load=target.load.name, name=target.name, samples=own, by_quart=ratios(QUART), by_fastapi=ratios(FASTAPI))


def table(rows: Sequence[Row]) -> str:
    names = f"{'µs / token':>12}{'range':>16}{'/ quart':>10}{'/ fastapi':>11}{'tokens/s':>10}{'per send':>10}"
    lines = [f"{'load':<11}{'server':<17}{names}"]
    for one in rows:
        costs = [sample.us_per_token for sample in one.samples]
        rate = statistics.median(sample.tokens_per_s for sample in one.samples)
        together = statistics.median(sample.tokens_per_read for sample in one.samples)
        lines.append(
            f"{one.load:<11}{one.name:<17}{statistics.median(costs):>12.1f}{f'{min(costs):.1f} - {max(costs):.1f}':>16}"
            f"{_ratio(one.by_quart):>10}{_ratio(one.by_fastapi):>11}{rate:>10.0f}{together:>10.2f}"
        )
    return "\n".join(lines)


def _ratio(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def report_json(machine: Machine, loads: Sequence[Load], rounds: int, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "machine": attrs.asdict(machine),
        "settings": {"loads": [attrs.asdict(load) for load in loads], "rounds": rounds},
        "rows": [attrs.asdict(one) for one in rows],
    }


def save_plot(title: str, rows: Sequence[Row], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(8, 4), layout="constrained")
    loads = list(dict.fromkeys(one.load for one in rows))
    for axes, load in zip(figure.subplots(1, len(loads), squeeze=False)[0], loads, strict=True):
        shown = [one for one in rows if one.load == load]
        for place, one in enumerate(shown):
            costs = [sample.us_per_token for sample in one.samples]
            axes.bar(place, statistics.median(costs), color="tab:blue" if one.name == OURS else "tab:orange", alpha=0.7)
            axes.scatter([place] * len(costs), costs, s=8, color="black", zorder=3)
        axes.set(title=load, ylabel="processor time, µs / token", xticks=range(len(shown)))
        axes.set_xticklabels([one.name for one in shown], fontsize=7)
        axes.grid(axis="y", alpha=0.3)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path)


if __name__ == "__main__":
    main()
