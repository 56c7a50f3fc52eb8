"""How soon an abandoned stream stops to cost anything, and what that costs the streams beside it."""

import argparse
import json
import re
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import httpx
import trio
from benchmarks.abort_trace import TracedAbort, read_aborts
from benchmarks.machine import Machine, this_machine
from benchmarks.server_process import local_server

from layered_llm.client.bench.statistics import percentile

HELP = """\
Starts a server whose device computes nothing and takes a fixed time for each step, and keeps N streams open. In every second
window of time some of them are left at random moments, half with a FIN, half with a RST, one at a time, and each is replaced by
a new one; in the windows between nobody leaves.

Nothing asks the server anything meanwhile. The scheduler writes into its trace when it handles an abort, and when the last page
of the request is back; client and scheduler read the same monotonic clock, so both times are exact.

Read it so:
  to handled       from the client's close to the abort in the scheduler: through kernel, HTTP server and text worker
  to pages free    ... and to the last of the stream's pages. Those wait for the steps that were in flight when the abort came,
                   two if two are in flight
  handled to free  the second part of that: what the scheduler and the device take
  beyond steps     the time to pages free, less the nominal time of those steps, and 0 for what is faster: what all but the
                   device takes
  wasted           sampled tokens that were dropped, since their choice had ended, for each abort: rows of steps that were
                   computed in vain. At most the steps in flight
  tokens/s         of the streams that stay, all together, in the windows; the ratio is that of each window with leaving to the
                   quiet one before it: the median of the rounds, and the range. 1.00 means that nobody notices
"""
EVENT: Final = b"data: "
RESPONSE_ID: Final = re.compile(rb'"id":"cmpl-([0-9a-f]{16})"')
CONTEXT_TOKENS: Final = 8000
"""Of the default model, and a bit less; the longest that a stream can go on."""
LONGEST_PAUSE_S: Final = 0.3
GIVE_UP_S: Final = 10.0
RESET: Final = struct.pack("ii", 1, 0)


@attrs.frozen(kw_only=True)
class Departure:
    """One client that left."""

    request: int
    is_reset: bool
    closed_s: float
    """On the machine's monotonic clock."""


@attrs.frozen(kw_only=True)
class Cost:
    """What one departure took. In seconds from the client's close."""

    is_reset: bool
    handled_s: float
    freed_s: float
    steps: int
    beyond_s: float
    """`freed_s` less the nominal time of the steps."""


@attrs.frozen(kw_only=True)
class Round:
    """A quiet window and one with departures."""

    quiet_tokens_per_s: float
    leaving_tokens_per_s: float
    departures: Sequence[Departure]
    aborts: float
    surplus_tokens: float

    @property
    def ratio(self) -> float:
        return self.leaving_tokens_per_s / self.quiet_tokens_per_s


@attrs.frozen(kw_only=True)
class Times:
    """A line of the table, in milliseconds."""

    name: str
    count: int
    p50: float
    p99: float
    max: float


@attrs.define(eq=False)
class OpenStream:
    """One streamed completion, and how many pieces of it have come: at a step of many milliseconds each is a token."""

    _stream: trio.SocketStream
    pieces: int = attrs.field(init=False, default=0)
    request: int = attrs.field(init=False, default=0)
    begun: trio.Event = attrs.field(init=False, factory=trio.Event)
    _is_left: bool = attrs.field(init=False, default=False)

    async def read(self) -> None:
        """Counts until the client leaves. Exits when the server ends the stream."""
        tail = b""
        try:
            while data := await self._stream.receive_some():
                self.pieces += (tail + data).count(EVENT)
                tail = data[1 - len(EVENT) :]
                if not self.request and (found := RESPONSE_ID.search(data)) is not None:
                    self.request = int(found[1], 16)
                    self.begun.set()
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            pass
        if not self._is_left:
            raise SystemExit(f"a stream ended early: {tail!r}")

    async def leave(self, *, is_reset: bool) -> Departure:
        self._is_left = True
        closed_s = time.monotonic()
        if is_reset:
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._stream.socket.close()
        else:
            await self._stream.send_eof()
        return Departure(request=self.request, is_reset=is_reset, closed_s=closed_s)


@attrs.define(eq=False)
class Rig:
    """The streams of a measurement."""

    _client: httpx.AsyncClient
    _nursery: trio.Nursery
    _random: Random
    staying: list[OpenStream] = attrs.field(init=False, factory=list)
    leaving: list[OpenStream] = attrs.field(init=False, factory=list)
    _opened: int = attrs.field(init=False, default=0)

    async def open_stream(self) -> OpenStream:
        """A stream that has begun. Its prompt is its own: where two say the same, pages come free by being shared."""
        url = self._client.base_url
        self._opened += 1
        prompt = f"{self._opened} on and on"
        body = {"prompt": prompt, "max_tokens": CONTEXT_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
        data = json.dumps(body).encode()
        connection = await trio.open_tcp_stream(url.host, url.port or 80)
        opened = OpenStream(connection)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        await connection.send_all(head.encode() + data)
        self._nursery.start_soon(opened.read)
        with trio.fail_after(GIVE_UP_S):
            await opened.begun.wait()
        return opened

    async def fill(self, *, staying: int, leaving: int) -> None:
        for _ in range(staying):
            self.staying.append(await self.open_stream())
        for _ in range(leaving):
            self.leaving.append(await self.open_stream())

    async def round(self, window_s: float) -> Round:
        quiet = await self._tokens_per_s(window_s, None)
        before = await self._counters()
        departures: list[Departure] = []
        rate = await self._tokens_per_s(window_s, departures)
        after = await self._counters()
        return Round(
            quiet_tokens_per_s=quiet,
            leaving_tokens_per_s=rate,
            departures=departures,
            aborts=after["aborts_handled_total"] - before["aborts_handled_total"],
            surplus_tokens=after["surplus_tokens_total"] - before["surplus_tokens_total"],
        )

    async def _tokens_per_s(self, window_s: float, departures: list[Departure] | None) -> float:
        """Of those that stay; the others leave, one by one, where their departures are wanted."""
        started_s, pieces = trio.current_time(), self._staying_pieces()
        while trio.current_time() < started_s + window_s:
            await trio.sleep(self._random.random() * LONGEST_PAUSE_S)
            if departures is not None:
                departures.append(await self._depart())
        return (self._staying_pieces() - pieces) / (trio.current_time() - started_s)

    async def _depart(self) -> Departure:
        """One stream is left, and another one takes its place."""
        gone = self.leaving.pop(self._random.randrange(len(self.leaving)))
        departure = await gone.leave(is_reset=self._random.random() < 0.5)
        self.leaving.append(await self.open_stream())
        return departure

    async def _counters(self) -> dict[str, float]:
        """Counters by their short names, summed over labels."""
        sums: dict[str, float] = {}
        for line in (await self._client.get("/metrics")).text.splitlines():
            sample, _, value = line.rpartition(" ")
            name = sample.partition("{")[0].removeprefix("layered_llm_")
            if sample.startswith("layered_llm_"):
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def _staying_pieces(self) -> int:
        return sum(one.pieces for one in self.staying)


def main() -> None:
    arguments = parse()
    machine = this_machine()
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.json"
        flags = ["--device", "scripted", "--scripted-step-ms", str(arguments.step_ms), "--num-pages", "32768"]
        sys.stderr.write("starting the server\n")
        with local_server(*flags, "--trace-file", str(trace)) as server:
            rounds = trio.run(measure, server.url, arguments)
        aborts = read_aborts(trace)
    costs = [cost(one, aborts[one.request], arguments.step_ms / 1e3) for each in rounds for one in each.departures]
    rows = time_rows(costs)
    title = f"{arguments.streams} streams, {arguments.leavers} of them may leave; steps of {arguments.step_ms:g} ms; {machine}"
    print(f"{title}\n\n{table(rows)}\n\n{summary(rounds, costs)}")
    if arguments.json is not None:
        report = report_json(machine, arguments, rows, rounds, costs)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        save_plot(title, costs, arguments.plot)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cancellation", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=32, metavar="N", help="streams at a time (default: 32)")
    parser.add_argument("--leavers", type=int, default=8, metavar="N", help="those of them that may leave (default: 8)")
    parser.add_argument("--step-ms", type=float, default=20.0, metavar="X", help="time of a step (default: 20)")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="pairs of windows (default: 6)")
    parser.add_argument("--window-s", type=float, default=4.0, metavar="X", help="length of a window (default: 4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="who leaves, when and how (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings, table and all rounds to FILE")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the distribution of the times into FILE (.png, …; needs matplotlib)"
    )
    arguments = parser.parse_args()
    if not 0 < arguments.leavers < arguments.streams:
        parser.error("--leavers must be at least 1 and less than --streams")
    # Windows end late, by a departure, and the first stream runs while the others are opened.
    if 1.5 * 2 * arguments.rounds * arguments.window_s * 1e3 / arguments.step_ms > CONTEXT_TOKENS:
        parser.error(f"streams would end before the measurement, at {CONTEXT_TOKENS} tokens: ask for less time or longer steps")
    return arguments


async def measure(url: str, arguments: argparse.Namespace) -> list[Round]:
    rounds: list[Round] = []
    async with httpx.AsyncClient(base_url=url, timeout=GIVE_UP_S) as client, trio.open_nursery() as nursery:
        rig = Rig(client, nursery, Random(arguments.seed))
        await rig.fill(staying=arguments.streams - arguments.leavers, leaving=arguments.leavers)
        for number in range(1, arguments.rounds + 1):
            rounds.append(await rig.round(arguments.window_s))
            sys.stderr.write(f"round {number}/{arguments.rounds}: {len(rounds[-1].departures)} left\n")
        nursery.cancel_scope.cancel()
    return rounds


def cost(departure: Departure, abort: TracedAbort, step_s: float) -> Cost:
    freed_s = abort.freed_s - departure.closed_s
    return Cost(
        is_reset=departure.is_reset,
        handled_s=abort.handled_s - departure.closed_s,
        freed_s=freed_s,
        steps=abort.steps,
        beyond_s=max(0.0, freed_s - abort.steps * step_s),
    )


def time_rows(costs: Sequence[Cost]) -> list[Times]:
    return [
        times("to handled, FIN", [one.handled_s for one in costs if not one.is_reset]),
        times("to handled, RST", [one.handled_s for one in costs if one.is_reset]),
        times("to handled", [one.handled_s for one in costs]),
        times("to pages free", [one.freed_s for one in costs]),
        times("handled to free", [one.freed_s - one.handled_s for one in costs]),
        times("beyond steps", [one.beyond_s for one in costs]),
    ]


def times(name: str, seconds: Sequence[float]) -> Times:
    """NaN of nothing."""
    ordered = sorted(one * 1e3 for one in seconds) or [float("nan")]
    return Times(name=name, count=len(seconds), p50=percentile(ordered, 50), p99=percentile(ordered, 99), max=ordered[-1])


def table(rows: Sequence[Times]) -> str:
    lines = [f"{'ms':<18}{'count':>8}{'p50':>9}{'p99':>9}{'max':>9}"]
    lines += [f"{row.name:<18}{row.count:>8}{row.p50:>9.1f}{row.p99:>9.1f}{row.max:>9.1f}" for row in rows]
    return "\n".join(lines)


def summary(rounds: Sequence[Round], costs: Sequence[Cost]) -> str:
    aborts = sum(one.aborts for one in rounds)
    wasted = sum(one.surplus_tokens for one in rounds) / aborts
    quiet = statistics.median(one.quiet_tokens_per_s for one in rounds)
    leaving = statistics.median(one.leaving_tokens_per_s for one in rounds)
    ratios = sorted(one.ratio for one in rounds)
    return (
        f"wasted           {wasted:.2f} tokens for each of {aborts:.0f} aborts, "
        f"{statistics.mean(one.steps for one in costs):.2f} steps in flight\n"
        f"tokens/s         {quiet:.1f} while nobody leaves, {leaving:.1f} while some do: "
        f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} - {ratios[-1]:.3f})"
    )


def report_json(
    machine: Machine, arguments: argparse.Namespace, rows: Sequence[Times], rounds: Sequence[Round], costs: Sequence[Cost]
) -> Mapping[str, Any]:
    names = ("streams", "leavers", "step_ms", "rounds", "window_s", "seed")
    return {
        "machine": attrs.asdict(machine),
        "settings": {name: getattr(arguments, name) for name in names},
        "table_ms": [attrs.asdict(row) for row in rows],
        "rounds": [attrs.asdict(one) for one in rounds],
        "costs": [attrs.asdict(one) for one in costs],
    }


def save_plot(title: str, costs: Sequence[Cost], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.ecdf([one.handled_s * 1e3 for one in costs], label="abort handled")
    axes.ecdf([one.freed_s * 1e3 for one in costs], label="all pages free")
    axes.ecdf([one.beyond_s * 1e3 for one in costs], label="... beyond the steps in flight", linestyle="dotted")
    axes.set(xlabel="ms since the client's close", ylabel="part of all", xlim=(0, None), title=title)
    axes.title.set_fontsize(8)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
