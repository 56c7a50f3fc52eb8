"""Engines by themselves: decode and prefill, taking turns."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

import attrs
from benchmarks.compare_engines import (
    MOST_CONTEXT_TOKENS,
    OURS,
    ROOFLINE,
    THREADS,
    EngineCommand,
    ModelShape,
    Places,
    engines,
    is_installed,
    model_shape,
)
from benchmarks.compare_progress import Progress, rounds_until
from benchmarks.compare_settings import Plan
from benchmarks.peers.protocol import Decoded, Setup
from benchmarks.processor_time import ProcessorTimes
from benchmarks.worker_process import Worker, WorkerError, worker
from tokenizers import Tokenizer

from layered_llm.client.bench.prompts import WORDS

OPEN_TIMEOUT_S: Final = 300.0
CALL_TIMEOUT_S: Final = 120.0
WARM_UP_STEPS: Final = 2
FLOPS_OF_WEIGHT: Final = 2


@attrs.frozen(kw_only=True)
class Case:
    """One thing that is measured of each engine."""

    name: str
    tokens: int
    """Sequences that decode, or tokens of the prompt."""
    is_decode: bool


@attrs.frozen(kw_only=True)
class Rates:
    """Of the machine at one moment."""

    read_bytes_per_s: float
    flops_per_s: float


@attrs.frozen(kw_only=True)
class Work:
    """What nobody can do without, for some tokens of one case."""

    tokens: int
    read_bytes: int
    flops: int


@attrs.frozen(kw_only=True)
class Sample:
    """One measurement."""

    tokens_per_s: float
    others_cores: float


@attrs.define
class BareResult:
    """All that was measured of engines by themselves."""

    cases: Sequence[Case]
    samples: dict[str, dict[str, list[Sample]]] = attrs.Factory(dict)
    """By engine and case; one for each round."""
    rates: list[Rates] = attrs.Factory(list)
    work: dict[str, dict[str, Work]] = attrs.Factory(dict)
    """By engine and case."""
    token_ids: dict[str, dict[str, Sequence[Sequence[int]]]] = attrs.Factory(dict)
    """By engine and case, of the first round."""
    left_out: dict[str, str] = attrs.Factory(dict)
    """Why, by engine."""


def cases_of(plan: Plan) -> list[Case]:
    decodes = [Case(name=f"decode {batch}", tokens=batch, is_decode=True) for batch in plan.batches]
    return [*decodes, Case(name=f"prefill {plan.prompt_tokens}", tokens=plan.prompt_tokens, is_decode=False)]


def measure_bare(plan: Plan, places: Places, result: BareResult, progress: Progress, keep: Callable[[], None]) -> None:
    """Opens all engines, measures them in rounds, and ends them; `keep` is called behind each round."""
    tokenizer = Tokenizer.from_file(str(places.hugging_face / "tokenizer.json"))
    commands = chosen_engines(plan, places)
    end_s = time.monotonic() + plan.bare_limit_s
    with contextlib.ExitStack() as stack:
        opened = _open_all(stack, commands, contexts_of(plan, tokenizer), result, progress)
        measured_names = [command.name for command in commands if command.name != ROOFLINE]
        rounds = Rounds(
            plan=plan, shape=model_shape(places), tokenizer=tokenizer, names=measured_names, result=result, progress=progress
        )
        for number in rounds_until(plan.rounds, end_s, progress, bare_steps(plan, places)):
            rounds.run(number, opened)
            keep()


def chosen_engines(plan: Plan, places: Places) -> list[EngineCommand]:
    return [one for one in engines(places) if one.family in {OURS, *plan.families}]


def bare_steps(plan: Plan, places: Places) -> int:
    """Measurements in a round."""
    return len(cases_of(plan)) * (len(chosen_engines(plan, places)) - 1)


def random_ids(tokenizer: Tokenizer, random: Random, count: int) -> list[int]:
    """Of random words, as a client would send them."""
    text = " ".join(random.choices(WORDS, k=count))
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids[:count]


def contexts_of(plan: Plan, tokenizer: Tokenizer) -> list[list[int]]:
    random = Random("contexts")
    return [random_ids(tokenizer, random, plan.context_tokens) for _ in range(max(plan.batches))]


def _open_all(
    stack: contextlib.ExitStack,
    commands: Sequence[EngineCommand],
    contexts: Sequence[Sequence[int]],
    result: BareResult,
    progress: Progress,
) -> dict[str, Worker]:
    opened = {}
    setup = Setup(contexts=contexts, threads=THREADS, context_tokens=MOST_CONTEXT_TOKENS)
    for command in commands:
        with progress.step(f"opening {command.name}"):
            try:
                opened[command.name] = open_worker(stack, command, setup)
            except WorkerError as error:
                result.left_out[command.name] = str(error)
    return opened


def open_worker(stack: contextlib.ExitStack, engine: EngineCommand, setup: Setup) -> Worker:
    """Ends with the stack. Raises WorkerError."""
    if not is_installed(engine.command):
        raise WorkerError(f"not installed: there is no {engine.command[0]}")
    opened = stack.enter_context(worker(engine.command, engine.environment))
    try:
        opened.open(setup, timeout_s=OPEN_TIMEOUT_S)
    except WorkerError:
        opened.kill()
        raise
    return opened


@attrs.frozen(kw_only=True)
class Rounds:
    """Measures all engines once a round."""

    plan: Plan
    shape: ModelShape
    tokenizer: Tokenizer
    names: Sequence[str]
    """Of all engines, whether they could be opened or not."""
    result: BareResult
    progress: Progress

    def run(self, number: int, opened: dict[str, Worker]) -> None:
        """An engine that fails is left out from then on: it is taken from `opened`."""
        random = Random(f"prompts {number}")
        for case in self.result.cases:
            self._try(opened, ROOFLINE, case, self._measure_limit)
            prompt = random_ids(self.tokenizer, random, case.tokens)
            for name in turned(self.names, number):
                with self.progress.step(f"round {number + 1}/{self.plan.rounds}, {case.name}, {name}"):
                    self._try(opened, name, case, partial(self._measure, name, case, prompt))

    def _try(self, opened: dict[str, Worker], name: str, case: Case, measure: Callable[[Worker], None]) -> None:
        """Nothing where it was left out before."""
        if name not in opened:
            return
        try:
            measure(opened[name])
        except WorkerError as error:
            opened.pop(name).kill()
            self.result.left_out[name] = f"{case.name}: {error}"

    def _measure_limit(self, limit: Worker) -> None:
        read = limit.call("read_bytes_per_s", timeout_s=CALL_TIMEOUT_S)
        flops = limit.call("multiply_flops_per_s", timeout_s=CALL_TIMEOUT_S)
        self.result.rates.append(Rates(read_bytes_per_s=read, flops_per_s=flops))

    def _measure(self, name: str, case: Case, prompt: Sequence[int], engine: Worker) -> None:
        self.result.work.setdefault(name, {})[case.name] = self._work(engine, case)
        before, began_s = ProcessorTimes.now(), time.perf_counter()
        if case.is_decode:
            steps = WARM_UP_STEPS + self.plan.steps
            decoded = Decoded(*engine.call("decode", timeout_s=CALL_TIMEOUT_S, batch=case.tokens, steps=steps))
            self.result.token_ids.setdefault(name, {}).setdefault(case.name, decoded.token_ids)
            rate = case.tokens / statistics.median(decoded.step_s[WARM_UP_STEPS:])
        else:
            rate = case.tokens / engine.call("prefill", timeout_s=CALL_TIMEOUT_S, prompt=prompt)
        spent = ProcessorTimes.now().since(before, [engine.pid])
        sample = Sample(tokens_per_s=rate, others_cores=spent.others_s / (time.perf_counter() - began_s))
        self.result.samples.setdefault(name, {}).setdefault(case.name, []).append(sample)

    def _work(self, engine: Worker, case: Case) -> Work:
        """Decode counts the products of the weights alone, prefill those of attention too."""
        shape, weight_bytes = self.shape, engine.size.weight_bytes
        if case.is_decode:
            kv_bytes = shape.kv_items_per_token * engine.size.kv_item_bytes
            return Work(
                tokens=case.tokens,
                read_bytes=weight_bytes + case.tokens * self.plan.context_tokens * kv_bytes,
                flops=FLOPS_OF_WEIGHT * (shape.layer_weights + shape.head_weights) * case.tokens,
            )
        pairs = case.tokens * (case.tokens + 1) // 2 * (shape.layers - 1) + case.tokens
        attended = 2 * pairs * shape.heads * shape.head_size
        weights = shape.layer_weights * case.tokens - shape.unread_weights * (case.tokens - 1) + shape.head_weights
        flops = FLOPS_OF_WEIGHT * (weights + attended)
        return Work(tokens=case.tokens, read_bytes=weight_bytes, flops=flops)


def median_rates(rates: Sequence[Rates]) -> Rates:
    """Of at least one."""
    return Rates(
        read_bytes_per_s=statistics.median(one.read_bytes_per_s for one in rates),
        flops_per_s=statistics.median(one.flops_per_s for one in rates),
    )


def limit_tokens_per_s(work: Work, rates: Rates) -> float:
    """Of what cannot do without `work`, on a machine of these rates."""
    return work.tokens / max(work.read_bytes / rates.read_bytes_per_s, work.flops / rates.flops_per_s)


def same_texts(result: BareResult, name: str, reference: str) -> tuple[int, int] | None:
    """Sequences whose tokens are all those of `reference`, of how many; None where either was not measured."""
    own, others = result.token_ids.get(name), result.token_ids.get(reference)
    if own is None or others is None:
        return None
    pairs = list(_pairs(own, others))
    return sum(mine == theirs for mine, theirs in pairs), len(pairs)


def _pairs(
    own: Mapping[str, Sequence[Sequence[int]]], others: Mapping[str, Sequence[Sequence[int]]]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    for case in own.keys() & others.keys():
        yield from zip(own[case], others[case], strict=True)


def turned(names: Sequence[str], by: int) -> list[str]:
    start = by % len(names)
    return [*names[start:], *names[:start]]
