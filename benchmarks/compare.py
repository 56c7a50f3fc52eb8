"""This project beside transformers, llama.cpp and vLLM: the same model, the same prompts, taking turns in one run."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
from benchmarks.compare_bare import BareResult, measure_bare
from benchmarks.compare_engines import PEERS, Places, make_model_files, model_shape
from benchmarks.compare_http import HttpResult, measure_http
from benchmarks.compare_report import report_json, save_plot, tables
from benchmarks.compare_settings import Plan
from benchmarks.machine import this_machine
from tqdm import tqdm

HELP = """\
Measures engines by themselves, then servers over HTTP, in rounds: in each round every one of them does the same work once, one
after the other, beginning with another one each time, so that a disturbance hits all of them. All are open from the beginning
to the end and sleep while they are not asked. Greedy; two threads on two cores; prompts are random words, no two the same.

Every one has the weights of the default model, as exact fp32 numbers or rounded as its name says. transformers computes with
what its documentation advises: fp32, scaled_dot_product_attention, one batch without padding. llama.cpp has its own defaults
and one llama_decode for all sequences of a step. vLLM runs eagerly in fp32. Ours is given steps as its scheduler gives them,
without the rest of the server. What is not installed, or fails, is named and left out.

Read it so:
  decode N          tokens/s of N sequences at a time behind contexts of 192 tokens (64 where it is quick): N by the median
                    time of a step
  prefill 512       tokens/s of one prompt of 512 tokens, up to its first token
  ( … of the limit) the same by what the machine allows for the format that the engine uses: the slower of reading its weights,
                    keys and values once a step, and of the products of its weights (with attention, in prefill), at the best
                    rates of a plain sum and of a product of matrices, both measured in every round
  same text         sequences whose greedy tokens are all those of transformers
  ours / it         ratios within a round, and over the fastest llama.cpp: the median (lowest - highest) of the rounds
  HTTP              all output tokens by all time with N clients that ask at once, streamed; first token (TTFT) and the gap
                    between two pieces of text: medians. The last line is our runtime with the same prompts and no server
  others            cores that the rest of the machine took meanwhile: over some tenths, repeat when it is quiet

OMP_WAIT_POLICY is left as it is in the environment: unset, the threads of the peers spin while they wait, which is best for
them on a quiet machine; on a busy one PASSIVE is. Settings of ours come from the environment too: LAYERED_LLM_DTYPE=float16 …

The peers have virtual environments of their own; benchmarks/README.md has the commands.
"""


def main() -> None:
    arguments = parse()
    places = Places(
        peers_python=arguments.peers_python.absolute(),
        vllm_python=arguments.vllm_python.absolute(),
        models=arguments.models.absolute(),
    )
    plan = Plan.quick() if arguments.quick else Plan.whole()
    plan = attrs.evolve(plan, rounds=arguments.rounds or plan.rounds, families=tuple(arguments.only or plan.families))
    machine = this_machine()
    started_s = time.monotonic()
    make_model_files(places)
    shape = model_shape(places)
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(tqdm(unit="measurement", file=sys.stderr, disable=None))
        bare: BareResult = measure_bare(plan, places, shape, progress)
        http: HttpResult = measure_http(plan, places, progress)
    minutes = (time.monotonic() - started_s) / 60
    title = f"{machine}; {plan.rounds} rounds, {minutes:.0f} minutes"
    print(f"{title}\n\n{tables(bare, http)}")
    if arguments.json is not None:
        report = report_json(machine, plan, bare, http)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        save_plot(title, bare, http, arguments.plot)


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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings and everything that was measured to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the tables into FILE (.png, .svg, …; needs matplotlib)")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
