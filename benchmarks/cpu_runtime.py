"""The runtime by itself, in every precision: decode and prefill, beside plain torch and the machine's limit.

python -m benchmarks.cpu_runtime [--json FILE] [--plot FILE]

All variants take turns in one process, round by round; a figure is the median of the rounds, and in brackets the share of the
limit: what the machine's best reading of memory and multiplying of matrices in the same run allow. The limit counts a step's
weights in the variant's precision, keys and values, and two operations for each weight and token. What other processes take
shows as a lower share: compare only figures of one run.
"""

import argparse
import json
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from benchmarks.machine import this_machine
from benchmarks.peers.own_engine import Own
from benchmarks.peers.protocol import Setup
from benchmarks.peers.roofline_engine import Roofline

from layered_llm.runtime.cores import available_cores
from layered_llm.runtime.model_config import ModelConfig
from layered_llm.runtime.model_files import read_model
from layered_llm.service.settings import load
from layered_llm.service.supervisor import find_checkpoint

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
    "int8": Variant(settings={"dtype": "int8"}, weight_bytes=34 / 32),
    "bfloat16": Variant(settings={"dtype": "bfloat16"}, weight_bytes=2),
    "float16": Variant(settings={"dtype": "float16"}, weight_bytes=2),
    "float32": Variant(settings={"dtype": "float32"}, weight_bytes=4),
    TORCH: Variant(settings={"kernels": "torch"}, weight_bytes=4),
}


@attrs.define
class Measured:
    """Tokens per second of each variant and case, round by round, and what the machine can do at best."""

    rates: dict[str, dict[str, list[float]]]
    read_bytes_per_s: float = 0.0
    flops_per_s: float = 0.0


def measure(arguments: argparse.Namespace) -> Measured:
    generator = random.Random(0)
    setup = Setup(
        contexts=[_prompt(generator, CONTEXT_TOKENS) for _ in range(max(BATCHES))],
        threads=arguments.threads,
        context_tokens=PROMPT_TOKENS + 2,
    )
    names = [name for name in VARIANTS if not arguments.only or name in arguments.only]
    engines = {name: Own(setup, VARIANTS[name].settings) for name in names}
    measured = Measured({name: {} for name in names})
    limit = Roofline(setup)
    for number in range(arguments.rounds):
        measured.read_bytes_per_s = max(measured.read_bytes_per_s, limit.read_bytes_per_s())
        measured.flops_per_s = max(measured.flops_per_s, limit.multiply_flops_per_s())
        prompt = _prompt(generator, PROMPT_TOKENS)
        for case, work in _cases(arguments.steps, prompt).items():
            for name, engine in engines.items():
                measured.rates[name].setdefault(case, []).append(work(engine))
        print(f"round {number + 1} of {arguments.rounds}", flush=True)
    return measured


def _cases(steps: int, prompt: Sequence[int]) -> dict[str, Callable[[Own], float]]:
    def decode(batch: int) -> Callable[[Own], float]:
        return lambda engine: batch / statistics.median(engine.decode(batch, steps).step_s)

    cases = {f"decode {batch}": decode(batch) for batch in BATCHES}
    return {**cases, PREFILL: lambda engine: len(prompt) / engine.prefill(prompt)}


def _prompt(generator: random.Random, tokens: int) -> list[int]:
    return [_FIRST_ID + generator.randrange(_IDS) for _ in range(tokens)]


def limits(measured: Measured, config: ModelConfig, file_bytes: int, name: str) -> dict[str, float]:
    """Tokens per second that the machine allows."""
    variant = VARIANTS[name]
    attention = config.hidden_size * 2 * (config.query_size + config.kv_size)
    layers = config.layers * (attention + 3 * config.hidden_size * config.intermediate_size)
    head = config.hidden_size * config.vocabulary_size
    weights = file_bytes if variant.weight_bytes is None else variant.weight_bytes * (layers + head)
    kv = 2 * config.layers * config.kv_size * variant.kv_bytes * CONTEXT_TOKENS

    def rate(tokens: int, heads: int, contexts: int) -> float:
        reading_s = (weights + contexts * kv) / measured.read_bytes_per_s
        multiplying_s = 2 * (tokens * layers + heads * head) / measured.flops_per_s
        return tokens / max(reading_s, multiplying_s)

    decodes = {f"decode {batch}": rate(batch, batch, batch) for batch in BATCHES}
    return {**decodes, PREFILL: rate(PROMPT_TOKENS, 1, 0)}


def table(measured: Measured, shares: Mapping[str, Mapping[str, float]]) -> str:
    cases = [*(f"decode {batch}" for batch in BATCHES), PREFILL]
    lines = [f"{'tokens/s (of the limit)':<24}" + "".join(f"{case:>16}" for case in cases)]
    for name, rates in measured.rates.items():
        cells = (f"{statistics.median(rates[case]):.1f} ({shares[name][case]:.2f})" for case in cases)
        lines.append(f"{name:<24}" + "".join(f"{cell:>16}" for cell in cells))
    read, flops = measured.read_bytes_per_s / 1e9, measured.flops_per_s / 1e9
    return "\n".join([*lines, f"limit: memory read at {read:.1f} GB/s, products of fp32 matrices at {flops:.0f} GFLOP/s"])


def plot(measured: Measured, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    cases = [*(f"decode {batch}" for batch in BATCHES), PREFILL]
    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, case in zip(figure.subplots(1, len(cases)), cases, strict=True):
        names = list(measured.rates)
        axes.barh(names, [statistics.median(measured.rates[name][case]) for name in names])
        axes.invert_yaxis()
        axes.set_title(f"{case}, tokens/s")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="of one decode measurement")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), help="variants")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="file for a picture (PNG)")
    arguments = parser.parse_args()
    checkpoint = trio.run(find_checkpoint, load()).path
    measured = measure(arguments)
    config, file_bytes = read_model(checkpoint).config, checkpoint.stat().st_size
    shares = {
        name: {
            case: statistics.median(rates[case]) / limit for case, limit in limits(measured, config, file_bytes, name).items()
        }
        for name, rates in measured.rates.items()
    }
    print(f"{this_machine()}\n\n{table(measured, shares)}")
    if arguments.json:
        figures = {"machine": str(this_machine()), "of_the_limit": shares, **attrs.asdict(measured)}
        arguments.json.write_text(json.dumps(figures, indent=1))
    if arguments.plot:
        plot(measured, arguments.plot)


if __name__ == "__main__":
    main()
