"""How long a server takes from the start of its process to its first 200 from /health, beside its slowest imports; how much
memory all its processes take then, and its runtime beyond its imports.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
from benchmarks.beside import EXPLANATION, THIS, Checkout, Pair, add_arguments, compare, rounds_of
from benchmarks.machine import this_machine
from benchmarks.process_memory import family_bytes
from benchmarks.runtime_memory import RuntimeMemory
from benchmarks.server_process import local_server

HELP = (
    """\
Starts the server several times, each time from nothing, and measures the time until /health says 200: all processes run and
the model is loaded. One start before that, not counted, fills the cache of compiled kernels and the system's cache of files.
In between, the imports that a start cannot do without are measured in processes of their own.

Settings of the server come from the environment: LAYERED_LLM_MODEL=./Qwen3-0.6B python -m benchmarks.start_time

Read it so:
  server ready   the whole start
  import …       a bare interpreter that imports this and ends; what the server needs beyond the slowest import is its own;
                 that of layered_llm, which a program has to wait for, is to take less than 0.15 s
  all processes  memory of the idle server, its start over: resident pages, of shared ones each process's share
  memory         most that is resident in a runtime process when the model is open, less what its imports take, beside the bytes
                 of the weights' files and of the KV pool; pages of the pool count when they are first used, and none is here

With --beside CHECKOUT, the start of both servers, and the memory of all their processes:
"""
    + EXPLANATION
)
IMPORTS = {
    "import layered_llm": "import layered_llm",
    "import torch": "import torch",
    "import of the runtime process": "import layered_llm.service.workers.runtime, layered_llm.runtime.cpu.cpu_opening",
    "import of the API process": "import layered_llm.service.server.serve",
}
READY = "server ready"
ALL_PROCESSES = "memory of all processes"
SETTLED_S = 1.5
"""After a start the server still starts the process for chat templates, and no more of what this measures changes."""


@attrs.define
class Starts:
    """Starts a server again and again, each time for both figures."""

    _environment: Mapping[str, str] | None = None
    _bytes: int = 0

    def start_s(self) -> float:
        with local_server(environment=self._environment) as server:
            time.sleep(SETTLED_S)
            self._bytes = family_bytes(server.pid)
            return server.start_s

    def memory_mb(self) -> float:
        """Of the last start."""
        return self._bytes / 1e6


@attrs.define
class Samples:
    """Seconds of one measured thing."""

    name: str
    measure: Callable[[], float]
    seconds: list[float] = attrs.Factory(list)


def main() -> None:
    arguments = parse()
    if arguments.beside is not None:
        raise SystemExit(not beside(arguments.beside, arguments))
    machine = this_machine()
    sys.stderr.write("filling caches\n")
    starts = Starts()
    starts.start_s()
    things = [Samples(READY, starts.start_s), *(Samples(name, importer(code)) for name, code in IMPORTS.items())]
    for number in range(1, arguments.rounds + 1):
        for samples in things:
            samples.seconds.append(samples.measure())
        sys.stderr.write(f"run {number}/{arguments.rounds}: ready after {things[0].seconds[-1]:.2f} s\n")
    print(f"{machine}; {arguments.rounds} runs\n")
    print(table(things))
    memory = measure_memory()
    print(f"\n{ALL_PROCESSES}: {starts.memory_mb():.0f} MB\n{memory_line(memory)}")
    if arguments.json is not None:
        report = {
            "machine": attrs.asdict(machine),
            "seconds": {samples.name: samples.seconds for samples in things},
            "all_processes_mb": starts.memory_mb(),
            "memory_bytes": attrs.asdict(memory),
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.start_time", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs",
        "--rounds",
        type=int,
        dest="rounds",
        metavar="N",
        help="starts that are measured (default: 5, with --beside 7)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.beside is None:
        arguments.rounds = arguments.rounds or 5
    return arguments


def beside(other: Checkout, arguments: argparse.Namespace) -> bool:
    """Measures the start of this tree's server and of the other's; whether this one is as fast, and as small."""
    sys.stderr.write("filling caches\n")
    this, that = (Starts(checkout.environment) for checkout in (THIS, other))
    for fill in (this, that):
        fill.start_s()
    pairs = [
        Pair(name=READY, unit="s", more_is_better=False, this=this.start_s, other=that.start_s),
        Pair(name=ALL_PROCESSES, unit="MB", more_is_better=False, this=this.memory_mb, other=that.memory_mb),
    ]
    return compare(other, pairs, rounds=rounds_of(arguments), bound=arguments.bound, json_file=arguments.json)


def importer(code: str) -> Callable[[], float]:
    def measure() -> float:
        began_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - began_s

    return measure


def measure_memory() -> RuntimeMemory:
    command = [sys.executable, "-m", "benchmarks.runtime_memory"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return RuntimeMemory(**json.loads(done.stdout))


def memory_line(memory: RuntimeMemory) -> str:
    own, weights, pool = (size / 1e6 for size in (memory.opened - memory.imports, memory.weights, memory.kv_pool))
    return (
        f"memory of the runtime beyond its imports ({memory.imports / 1e6:.0f} MB): {own:.0f} MB; {memory.ratio:.2f} of "
        f"weights and KV pool ({weights:.0f} + {pool:.0f} MB) and {memory.ratio_to_weights:.2f} of the weights"
    )


def table(things: list[Samples]) -> str:
    rows = [f"{'':<32}{'median':>10}{'min':>10}{'max':>10}"]
    for samples in things:
        values = (statistics.median(samples.seconds), min(samples.seconds), max(samples.seconds))
        rows.append(f"{samples.name:<32}" + "".join(f"{value:>8.2f} s" for value in values))
    return "\n".join(rows)


if __name__ == "__main__":
    main()
