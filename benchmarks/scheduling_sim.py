"""What a scheduling policy does to throughput and latency: the real scheduler, a device that is a formula, simulated time."""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import attrs
from benchmarks.simulated_engine import DeviceCost, SimulatedEngine
from benchmarks.simulated_policies import Policy, add_policies, count, policies_of
from benchmarks.simulated_rows import Row, row_of, save_plot, table
from benchmarks.simulated_traffic import TRAFFICS, Conversation, Shape, conversations
from benchmarks.step_costs import TraceFileError, calibrate
from tqdm import tqdm

from layered_llm.domain.limits import RuntimeLimits

HELP = """\
Plays the same made-up traffic against the scheduler once for each policy. Scheduler, prefix tree, pages, chunks and preemption
are the server's own code. Only the device is replaced, by a formula for the time of a step, and the clock, by one that jumps.
So an hour of traffic takes seconds, and two policies differ by nothing but themselves.

Traffic (--traffic):
  poisson   requests that have nothing to do with each other
  chat      conversations of several turns that begin with one of a few long system prompts; the next turn comes when the
            answer is there and was read, so a slow engine is asked more slowly
A share of the requests is urgent, which --order priority goes by; the column "urgent" is their time to a first token.

Policies: the first line of the table has the first value of each of --prefix-cache, --in-flight, --order, --chunk and
--max-token-gap-ms, and each further line changes one of them. --cross runs every combination.

The device (--device) is a sum: so much for a step, for a token of prefill, for a row of decode, and for the context that
attention reads. Each part can be set. No preset but a calibrated one was measured:
  cpu-small   an assumption: some 135M parameters in fp32 on two cores, roughly as it was seen there
  gpu-8b      an assumption: 8B parameters in 16 bits on one GPU with 3.3 TB/s and 500 TFLOP/s, by arithmetic: 5 ms to read the
              weights and 2 ms to launch, 16 GFLOP a token, 128 KiB of keys and values a token
--calibrate takes the parts from the steps of a real server, and says how far off they are. The trace needs steps of all kinds:
prompts of different lengths, and few and many streams at a time.
  python -m layered_llm serve --trace-file trace.json
  layered-llm bench http://127.0.0.1:8000 --prompt-words 5-700 --output-tokens 40 --concurrency 1 --requests 10
  layered-llm bench http://127.0.0.1:8000 --prompt-words 5-300 --output-tokens 40 --concurrency 12 --requests 48 --seed 1
  python -m benchmarks.scheduling_sim --calibrate trace.json --traffic poisson --rate 0.5

Read it so:
  tokens/s   output tokens by simulated time. Where the engine can follow the rate (--rate) all policies have about the same:
             raise it until they do not
  TTFT       time to the first token, from the arrival: queueing and prefill. p50, p90, p99 in milliseconds
  urgent     the same for urgent requests, p90
  gap        between two tokens of one answer. p50 is a step of decodes, p99 is a step with much prefill beside them: --chunk
             and --max-token-gap-ms are for it
  cached     part of the tokens of starting choices that was found in the prefix cache
  preempt    choices that had to give their pages up and be computed again: more than a few mean that --pages is too small
  busy       part of the time in which the device computed

Look for: what the prefix cache saves (chat), what two steps in flight gain where steps are short (raise --host-us), how --chunk
trades TTFT for gaps, how much TTFT a bound on the gap costs.

Try:
  python -m benchmarks.scheduling_sim --requests 2000 --rate 30
  python -m benchmarks.scheduling_sim --traffic poisson --device cpu-small --chunk 256 64 --max-token-gap-ms 0 200
  python -m benchmarks.scheduling_sim --pages 1500 --order lpm fcfs --prefix-cache on --cross --plot orders.png
"""

DEVICES: Final = {
    "cpu-small": DeviceCost(
        step_us=30_000,
        prefill_token_us=3_000,
        decode_row_us=3_000,
        context_row_us=2.0,
        context_pair_us=0.2,
        host_us=1_000,
    ),
    "gpu-8b": DeviceCost(
        step_us=7_000,
        prefill_token_us=32.0,
        decode_row_us=20.0,
        context_row_us=0.04,
        context_pair_us=0.001,
        host_us=1_000,
    ),
}
RATES_PER_S: Final = {
    ("cpu-small", "poisson"): 0.6,
    ("cpu-small", "chat"): 0.6,
    ("gpu-8b", "poisson"): 16,
    ("gpu-8b", "chat"): 16,
}
"""Near what the device can do with the first policy, where policies differ."""


@attrs.frozen(kw_only=True)
class SimulatedDevice:
    """What all policies run on."""

    cost: DeviceCost
    limits: RuntimeLimits


def main() -> None:
    arguments = parse()
    policies = list(policies_of(arguments))
    traffic = list(conversations(shape_of(arguments), arguments.seed))
    device = SimulatedDevice(cost=cost_of(arguments), limits=limits_of(arguments))
    rows: list[Row] = []
    with tqdm(total=len(policies) * arguments.requests, unit="request", file=sys.stderr, leave=False) as progress:
        for name, policy in policies:
            progress.set_description(name)
            rows.append(measure(name, policy, traffic, device, progress))
    print(f"{title(arguments)}\n\n{table(rows)}")
    if arguments.json is not None:
        report = {"settings": settings_json(arguments, device.cost), "policies": [attrs.asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        save_plot(title(arguments), rows, arguments.plot)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduling_sim", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_traffic(parser.add_argument_group("traffic"))
    add_device(parser.add_argument_group("device"))
    add_policies(parser.add_argument_group("policies, one value or several each"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings and all figures to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the table into FILE (needs matplotlib)")
    arguments = parser.parse_args()
    if arguments.calibrate is not None and arguments.rate is None:
        parser.error("--calibrate needs --rate: what a device that was measured can do is not known beforehand")
    if arguments.rate is None:
        arguments.rate = RATES_PER_S[arguments.device, arguments.traffic]
    return arguments


def add_traffic(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--traffic", choices=TRAFFICS, default="chat", help="kind of traffic (default: chat)")
    group.add_argument("--requests", type=count, default=600, metavar="N", help="how many in all (default: 600)")
    group.add_argument("--rate", type=positive, metavar="X", help="requests a second (default: near what the device can do)")
    group.add_argument(
        "--prompt-tokens", type=count, default=200, metavar="N", help="median new tokens of a turn (default: 200)"
    )
    group.add_argument("--output-tokens", type=count, default=100, metavar="N", help="mean of an answer (default: 100)")
    group.add_argument("--turns", type=count, default=6, metavar="N", help="chat: most turns of a conversation (default: 6)")
    group.add_argument("--system-prompts", type=count, default=5, metavar="N", help="chat: different ones (default: 5)")
    group.add_argument("--system-tokens", type=count, default=800, metavar="N", help="chat: length of each (default: 800)")
    group.add_argument("--think-s", type=positive, default=5.0, metavar="X", help="chat: mean time between turns (default: 5)")
    group.add_argument("--urgent-share", type=share, default=0.1, metavar="X", help="requests that are urgent (default: 0.1)")
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another one is other traffic of the same kind (default: 0)"
    )


def add_device(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--device", choices=DEVICES, default="gpu-8b", help="preset of the costs (default: gpu-8b)")
    group.add_argument("--calibrate", type=Path, metavar="TRACE", help="costs of the steps in the file of --trace-file instead")
    words = {
        "step_us": "microseconds of a step",
        "prefill_token_us": "of each token of prefill",
        "decode_row_us": "of each row of decode",
        "context_row_us": "of each token in front of a row",
        "context_pair_us": "of each token of a row and each one in front of it",
        "host_us": "between a step and the next one that needs its result",
    }
    for name, text in words.items():
        presets = ", ".join(f"{device}: {getattr(cost, name):g}" for device, cost in DEVICES.items())
        kind = int if name == "host_us" else float
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X", help=f"{text} ({presets})")
    group.add_argument("--pages", type=count, default=8192, metavar="N", help="pages of the KV cache (default: 8192)")
    group.add_argument("--page-size", type=count, default=16, metavar="N", help="tokens of a page (default: 16)")
    group.add_argument("--running", type=count, default=128, metavar="N", help="most choices that run at once (default: 128)")


def positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {value:g}")
    return value


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {value:g}")
    return value


def shape_of(arguments: argparse.Namespace) -> Shape:
    chat = {
        "turns": arguments.turns,
        "system_prompts": arguments.system_prompts,
        "system_tokens": arguments.system_tokens,
        "think_s": arguments.think_s,
    }
    return Shape(
        requests=arguments.requests,
        per_s=arguments.rate,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        urgent_share=arguments.urgent_share,
        **(chat if arguments.traffic == "chat" else {}),
    )


def cost_of(arguments: argparse.Namespace) -> DeviceCost:
    """What is given by itself wins over the trace, and the trace over the preset. Says how well the trace is met."""
    cost = DEVICES[arguments.device]
    if arguments.calibrate is not None:
        try:
            calibration = calibrate(arguments.calibrate)
        except TraceFileError as error:
            raise SystemExit(str(error)) from error
        print(f"{calibration}\n")
        cost = calibration.cost
    names = [field.name for field in attrs.fields(DeviceCost)]
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    return attrs.evolve(cost, **given)


def measure(name: str, policy: Policy, traffic: Iterable[Conversation], device: SimulatedDevice, progress: "tqdm[Any]") -> Row:
    started = time.perf_counter()
    scheduling = policy.scheduling(device.limits.slots)
    engine = SimulatedEngine(limits=device.limits, policy=scheduling, cost=device.cost, on_end=progress.update)
    outcome = engine.run(traffic)
    return row_of(name, outcome, time.perf_counter() - started)


def limits_of(arguments: argparse.Namespace) -> RuntimeLimits:
    return RuntimeLimits(
        pages=arguments.pages,
        page_size_tokens=arguments.page_size,
        slots=arguments.running,
        context_tokens=arguments.pages * arguments.page_size,
        vocabulary_size=1 << 31,
    )


def title(arguments: argparse.Namespace) -> str:
    device = arguments.device if arguments.calibrate is None else f"the device of {arguments.calibrate.name}"
    return (
        f"{arguments.requests} requests of {arguments.traffic} traffic at {arguments.rate:g}/s on {device}, "
        f"{arguments.pages} pages of {arguments.page_size}, at most {arguments.running} running, seed {arguments.seed}"
    )


def settings_json(arguments: argparse.Namespace, cost: DeviceCost) -> dict[str, Any]:
    settings = {name: value for name, value in vars(arguments).items() if name not in {"json", "plot", "calibrate"}}
    return settings | {"calibrate": str(arguments.calibrate or "")} | attrs.asdict(cost)


if __name__ == "__main__":
    main()
