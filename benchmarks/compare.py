"""This project beside transformers, llama.cpp and vLLM: the same model, the same prompts, taking turns in one run."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
from benchmarks.beside import EXPLANATION, add_arguments
from benchmarks.compare_bare import BareResult, bare_steps, cases_of, chosen_engines, measure_bare
from benchmarks.compare_beside import compare_checkouts
from benchmarks.compare_engines import PEERS, Places, make_model_files
from benchmarks.compare_http import HttpResult, chosen_servers, http_steps, measure_http
from benchmarks.compare_progress import Progress
from benchmarks.compare_report import report_json, rounds_done, save_plot, tables
from benchmarks.compare_settings import Plan
from benchmarks.json_file import write_json
from benchmarks.machine import Machine, this_machine
from tqdm import tqdm

HELP = (
    """\
Measures engines by themselves, then servers over HTTP, in rounds: in each round every one of them does the same work once, one
after the other, beginning with another one each time, so that a disturbance hits all of them. All are open from the beginning
to the end and sleep while they are not asked. Greedy; two threads on two cores; prompts are random words, no two the same.

Every one has the weights of the default model, as exact fp32 numbers or rounded as its name says. transformers computes with
what its documentation advises: fp32, scaled_dot_product_attention, one batch without padding. llama.cpp has its own defaults
and one llama_decode for all sequences of a step. vLLM runs eagerly. Ours is given steps as its scheduler gives them,
without the rest of the server. What is not installed, or fails, is named and left out, and the
rest goes on; the file of --json is written behind each round.

Read it so:
  decode N          tokens/s of N sequences at a time behind contexts of 192 tokens (64 where it is quick): N by the median
                    time of a step
  prefill 512       tokens/s of one prompt of 512 tokens, up to its first token
  ( … of the limit) the same by what the machine allows for the format that the engine uses: the slower of reading its weights,
                    keys and values once a step, and of the products of its weights (with attention, in prefill). Both rates
                    are peaks of the machine with all threads, which no library reaches: loops of machine code that only read
                    memory (in huge pages), and only multiply and add fp32 numbers in registers. Medians, measured before each
                    column of every round. Who multiplies numbers of 8 or 16 bits may exceed the latter
  same text         sequences whose greedy tokens are all those of transformers
  ours / it         ratios within a round, and over the fastest llama.cpp: the median (lowest - highest) of the rounds
  HTTP              all output tokens by all time with N clients that ask at once, streamed; first token (TTFT) and the gap
                    between two pieces of text: medians. The last line is our runtime with the same prompts and no server
  others            cores that the rest of the machine took meanwhile: over some tenths, repeat when it is quiet

OMP_WAIT_POLICY is left as it is in the environment: unset, the threads of the peers spin while they wait, which is best for
them on a quiet machine; on a busy one PASSIVE is. Settings of ours come from the environment too: LAYERED_LLM_DTYPE=float16 …

The peers have virtual environments of their own; benchmarks/README.md has the commands.

With --beside CHECKOUT no peers are needed: the runtime and the server of another commit are measured instead.
"""
    + EXPLANATION
)


def main() -> None:
    arguments = parse()
    if arguments.beside is not None:
        plan = Plan.quick() if arguments.quick else Plan.whole()
        raise SystemExit(not compare_checkouts(arguments.beside, plan, arguments))
    places = Places(
        peers_python=arguments.peers_python.absolute(),
        vllm_python=arguments.vllm_python.absolute(),
        models=arguments.models.absolute(),
    )
    plan = Plan.quick() if arguments.quick else Plan.whole()
    plan = attrs.evolve(plan, rounds=arguments.rounds or plan.rounds, families=tuple(arguments.only or plan.families))
    make_model_files(places)
    comparison = Comparison(
        plan=plan,
        places=places,
        json_file=arguments.json,
        machine=this_machine(),
        bare=BareResult(cases=cases_of(plan)),
        http=HttpResult(batches=plan.http_batches),
    )
    interrupted = False
    try:
        comparison.measure()
    except* KeyboardInterrupt:
        interrupted = True
    finally:
        print(f"{comparison.title()}\n\n{tables(comparison.bare, comparison.http)}")
        comparison.keep()
        if arguments.plot is not None:
            save_plot(comparison.title(), comparison.bare, comparison.http, arguments.plot)
    if interrupted:
        raise SystemExit("interrupted")


@attrs.frozen(kw_only=True)
class Comparison:
    """One run; what it has measured so far outlives it."""

    plan: Plan
    places: Places
    json_file: Path | None
    machine: Machine
    bare: BareResult
    http: HttpResult
    began_s: float = attrs.Factory(time.monotonic)

    def measure(self) -> None:
        plan, places = self.plan, self.places
        starts = len(chosen_engines(plan, places)) + len(chosen_servers(plan, places)) + 1
        steps = starts + plan.rounds * (bare_steps(plan, places) + http_steps(plan, places))
        with tqdm(total=steps, unit="step", file=sys.stderr, smoothing=0, dynamic_ncols=True) as bar:
            progress = Progress(bar)
            measure_bare(plan, places, self.bare, progress, self.keep)
            measure_http(plan, places, self.http, progress, self.keep)

    def keep(self) -> None:
        if self.json_file is not None:
            write_json(report_json(self.machine, self.plan, self.bare, self.http), self.json_file)

    def title(self) -> str:
        minutes = (time.monotonic() - self.began_s) / 60
        bare, http = rounds_done(self.bare.samples), rounds_done(self.http.samples)
        return f"{self.machine}; {bare} rounds, {http} over HTTP, {minutes:.0f} minutes"


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round without vLLM, under 4 minutes (else under 20)")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each part")
    parser.add_argument(
        "--only", nargs="+", choices=PEERS, metavar="NAME", help=f"beside ours, only these: {', '.join(PEERS)} (default: all)"
    )
    parser.add_argument(
        "--peers-python",
        type=Path,
        default=Path(".venv-peers/bin/python"),
        metavar="FILE",
        help="interpreter with benchmarks/peers/requirements.txt (default: %(default)s)",
    )
    parser.add_argument(
        "--vllm-python",
        type=Path,
        default=Path(".venv-vllm/bin/python"),
        metavar="FILE",
        help="interpreter with benchmarks/peers/vllm.txt (default: %(default)s)",
    )
    parser.add_argument(
        "--models",
        type=Path,
        default=Path("~/.cache/layered_llm/peers").expanduser(),
        metavar="DIR",
        help="where the weights are kept in the formats of the peers, 1.5 GB (default: %(default)s)",
    )
    add_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings and everything that was measured to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the tables into FILE (.png, .svg, …; needs matplotlib)")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
