"""The runtime by itself, in every precision: decode and prefill, beside plain torch and the machine's limit.

python -m benchmarks.cpu_runtime [--json FILE] [--plot FILE]

All variants take turns in one process, round by round; a figure is the median of the rounds, and in brackets the share of the
limit: what reading memory and multiplying and adding fp32 numbers, each by itself at the machine's peak with all threads, allow
(medians of the same run). The limit counts a step's weights in the variant's precision, keys and values, and two operations for
each weight and token. What other processes take shows as another share: compare only figures of one run. The file of --json is
written behind each round.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from benchmarks.compare_bare import FLOPS_OF_WEIGHT, Rates, Work, limit_tokens_per_s, median_rates, turned
from benchmarks.compare_engines import ModelShape
from benchmarks.json_file import write_json
from benchmarks.machine import this_machine
from benchmarks.peers.own_engine import Own
from benchmarks.peers.protocol import Setup
from benchmarks.peers.roofline_engine import Roofline
from tqdm import tqdm

from layered_llm.runtime.cpu.process_limits import available_cores
from layered_llm.runtime.models.model_config import ModelConfig
from layered_llm.runtime.models.model_files import read_model
from layered_llm.service.settings.settings import load
from layered_llm.service.supervisor.supervisor_loop import find_checkpoint

CONTEXT_TOKENS: Final = 200
PROMPT_TOKENS: Final = 512
BATCHES: Final = (1, 8, 32)
PREFILL: Final = f"prefill {PROMPT_TOKENS}"
TORCH: Final = "torch, float32"
_FIRST_ID: Final = 1000
_IDS: Final = 40_000


@attrs.frozen(kw_only=True)
class Variant:
    """Settings that are measured, and what a step of them has to read."""

    settings: Mapping[str, Any]
    weight_bytes: float | None
    """Of one number; None: as the file has it."""
    kv_bytes: int = 4


VARIANTS: Final[Mapping[str, Variant]] = {
    "as stored": Variant(settings={}, weight_bytes=None),
    "as stored, KV float16": Variant(settings={"kv_dtype": "float16"}, weight_bytes=None, kv_bytes=2),
    "bfloat16": Variant(settings={"dtype": "bfloat16"}, weight_bytes=2),
    "float16": Variant(settings={"dtype": "float16"}, weight_bytes=2),
    "float32": Variant(settings={"dtype": "float32"}, weight_bytes=4),
    TORCH: Variant(settings={"kernels": "torch"}, weight_bytes=4),
}


@attrs.define
class Measured:
    """Tokens per second of each variant and case, round by round, and what the machine can do at best."""

    rates: dict[str, dict[str, list[float]]]
    machine_rates: list[Rates] = attrs.Factory(list)


def measure(arguments: argparse.Namespace, keep: Callable[[Measured], None]) -> Measured:
    """`keep` is given all that is measured so far behind each round."""
    generator = random.Random(0)
    setup = Setup(
        contexts=[_prompt(generator, CONTEXT_TOKENS) for _ in range(max(BATCHES))],
        threads=arguments.threads,
        context_tokens=PROMPT_TOKENS + 2,
    )
    names = [name for name in VARIANTS if not arguments.only or name in arguments.only]
    measured = Measured({name: {} for name in names})
    with tqdm(total=len(names) * (1 + arguments.rounds * (len(BATCHES) + 1)), unit="step", file=sys.stderr) as progress:
        engines = {}
        for name in names:
            progress.set_description(f"opening {name}")
            engines[name] = Own(setup, VARIANTS[name].settings)
            progress.update()
        limit = Roofline(setup)
        for number in range(arguments.rounds):
            prompt = _prompt(generator, PROMPT_TOKENS)
            for case, work in _cases(arguments.steps, prompt).items():
                measured.machine_rates.append(
                    Rates(read_bytes_per_s=limit.read_bytes_per_s(), flops_per_s=limit.multiply_flops_per_s())
                )
                for name in turned(names, number):
                    progress.set_description(f"round {number + 1}/{arguments.rounds}, {case}, {name}")
                    measured.rates[name].setdefault(case, []).append(work(engines[name]))
                    progress.update()
            keep(measured)
    return measured


def _cases(steps: int, prompt: Sequence[int]) -> dict[str, Callable[[Own], float]]:
    def decode(batch: int) -> Callable[[Own], float]:
        return lambda engine: batch / statistics.median(engine.decode(batch, steps).step_s)

    cases = {f"decode {batch}": decode(batch) for batch in BATCHES}
    return {**cases, PREFILL: lambda engine: len(prompt) / engine.prefill(prompt)}


def _prompt(generator: random.Random, tokens: int) -> list[int]:
    return [_FIRST_ID + generator.randrange(_IDS) for _ in range(tokens)]


def limits(machine: Rates, config: ModelConfig, file_bytes: int, name: str) -> dict[str, float]:
    """Tokens per second that the machine allows."""
    variant = VARIANTS[name]
    shape = ModelShape(
        layers=config.layer_count,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_size=config.head_dim,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        vocabulary=config.vocabulary_size,
    )
    layers, head = shape.layer_weights, shape.head_weights
    weights = file_bytes if variant.weight_bytes is None else variant.weight_bytes * (layers + head)
    kv = shape.kv_items_per_token * variant.kv_bytes * CONTEXT_TOKENS

    def rate(tokens: int, heads: int, contexts: int) -> float:
        read = weights + contexts * kv
        flops = FLOPS_OF_WEIGHT * (tokens * layers - (tokens - heads) * shape.unread_weights + heads * head)
        return limit_tokens_per_s(Work(tokens=tokens, read_bytes=round(read), flops=flops), machine)

    decodes = {f"decode {batch}": rate(batch, batch, batch) for batch in BATCHES}
    return {**decodes, PREFILL: rate(PROMPT_TOKENS, 1, 0)}


def shares_of_limit(measured: Measured, checkpoint: Path) -> dict[str, dict[str, float]]:
    """Of each variant and case."""
    machine = median_rates(measured.machine_rates)
    config, file_bytes = read_model(checkpoint).config, checkpoint.stat().st_size
    shares = {}
    for name, rates in measured.rates.items():
        limit = limits(machine, config, file_bytes, name)
        shares[name] = {case: statistics.median(rates[case]) / limit[case] for case in limit}
    return shares


def table(measured: Measured, shares: Mapping[str, Mapping[str, float]]) -> str:
    cases = [*(f"decode {batch}" for batch in BATCHES), PREFILL]
    lines = [f"{'tokens/s (of the limit)':<24}" + "".join(f"{case:>16}" for case in cases)]
    for name, rates in measured.rates.items():
        cells = (f"{statistics.median(rates[case]):.1f} ({shares[name][case]:.2f})" for case in cases)
        lines.append(f"{name:<24}" + "".join(f"{cell:>16}" for cell in cells))
    machine = median_rates(measured.machine_rates)
    read, flops = machine.read_bytes_per_s / 1e9, machine.flops_per_s / 1e9
    return "\n".join([*lines, f"limit: memory read at {read:.1f} GB/s, fp32 multiplied and added at {flops:.0f} GFLOP/s"])


def plot(measured: Measured, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    cases = [*(f"decode {batch}" for batch in BATCHES), PREFILL]
    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, case in zip(figure.subplots(1, len(cases), sharey=True), cases, strict=True):
        names = list(measured.rates)
        axes.barh(names, [statistics.median(measured.rates[name][case]) for name in names])
        axes.set(title=case, xlabel="tokens/s")
    axes.invert_yaxis()
    figure.savefig(path)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=_positive, default=5)
    parser.add_argument("--steps", type=int, default=12, help="of one decode measurement")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), help="variants")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="file for a picture (PNG)")
    arguments = parser.parse_args()
    checkpoint = trio.run(find_checkpoint, load()).path
    before = this_machine()

    def keep(measured: Measured) -> None:
        if arguments.json:
            shares = shares_of_limit(measured, checkpoint)
            write_json({"machine": attrs.asdict(before), "of_the_limit": shares, **attrs.asdict(measured)}, arguments.json)

    measured = measure(arguments, keep)
    print(f"{before}\n\n{table(measured, shares_of_limit(measured, checkpoint))}")
    if arguments.plot:
        plot(measured, arguments.plot)


if __name__ == "__main__":
    main()
