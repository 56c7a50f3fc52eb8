"""How long a server takes from the start of its process to its first 200 from /health, beside its slowest imports."""

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
from benchmarks.server_process import local_server

HELP = """\
Starts the server several times, each time from nothing, and measures the time until /health says 200: all processes run and
the model is loaded. One start before that, not counted, fills the cache of converted models and the system's cache of files.
In between, the imports that a start cannot do without are measured in processes of their own.

Settings of the server come from the environment: LAYERED_LLM_MODEL=./Qwen3-0.6B python -m benchmarks.start_time

Read it so:
  server ready   the whole start
  import …       a bare interpreter that imports this and ends; what the server needs beyond the slowest import is its own
"""
IMPORTS = {
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
    if arguments.json is not None:
        report = {"machine": attrs.asdict(machine), "seconds": {samples.name: samples.seconds for samples in things}}
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


def table(things: list[Samples]) -> str:
    rows = [f"{'':<32}{'median':>10}{'min':>10}{'max':>10}"]
    for samples in things:
        values = (statistics.median(samples.seconds), min(samples.seconds), max(samples.seconds))
        rows.append(f"{samples.name:<32}" + "".join(f"{value:>8.2f} s" for value in values))
    return "\n".join(rows)


if __name__ == "__main__":
    main()
