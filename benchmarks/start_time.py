"""How long a server takes from the start of its process to its first 200 from /health, beside its slowest imports, and how much
memory its runtime takes beyond them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs
from benchmarks.machine import this_machine
from benchmarks.runtime_memory import RuntimeMemory
from benchmarks.server_process import local_server

HELP = """\
Starts the server several times, each time from nothing, and measures the time until /health says 200: all processes run and
the model is loaded. One start before that, not counted, fills the cache of compiled kernels and the system's cache of files.
In between, the imports that a start cannot do without are measured in processes of their own.

Settings of the server come from the environment: LAYERED_LLM_MODEL=./Qwen3-0.6B python -m benchmarks.start_time

Read it so:
  server ready   the whole start
  import …       a bare interpreter that imports this and ends; what the server needs beyond the slowest import is its own;
                 that of layered_llm, which a program has to wait for, is to take less than 0.15 s
  memory         most that is resident in a runtime process when the model is open, less what its imports take, beside the bytes
                 of the weights' files and of the KV pool; pages of the pool count when they are first used, and none is here
"""
IMPORTS = {
    "import layered_llm": "import layered_llm",
    "import torch": "import torch",
    "import of the runtime process": "import layered_llm.service.runtime, layered_llm.runtime.torch_opening",
    "import of the API process": "import layered_llm.service.serve",
}
READY = "server ready"


@attrs.define
class Samples:
    """Seconds of one measured thing."""

    name: str
    measure: Callable[[], float]
    seconds: list[float] = attrs.Factory(list)


def main() -> None:
    arguments = parse()
    machine = this_machine()
    sys.stderr.write("filling caches\n")
    measure_start()
    things = [Samples(READY, measure_start), *(Samples(name, importer(code)) for name, code in IMPORTS.items())]
    for number in range(1, arguments.runs + 1):
        for samples in things:
            samples.seconds.append(samples.measure())
        sys.stderr.write(f"run {number}/{arguments.runs}: ready after {things[0].seconds[-1]:.2f} s\n")
    print(f"{machine}; {arguments.runs} runs\n")
    print(table(things))
    memory = measure_memory()
    print("\n" + memory_line(memory))
    if arguments.json is not None:
        report = {
            "machine": attrs.asdict(machine),
            "seconds": {samples.name: samples.seconds for samples in things},
            "memory_bytes": attrs.asdict(memory),
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.start_time", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="starts that are measured (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    return parser.parse_args()


def measure_start() -> float:
    with local_server() as server:
        return server.start_s


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
