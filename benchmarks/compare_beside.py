"""Two checkouts of this project, taking turns: their runtimes by themselves, and their servers over HTTP."""

import argparse
import contextlib
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, islice
from random import Random
from typing import Final

from benchmarks.beside import THIS, Checkout, Pair, compare, rounds_of
from benchmarks.compare_bare import CALL_TIMEOUT_S, OPEN_TIMEOUT_S, WARM_UP_STEPS, Case, cases_of
from benchmarks.compare_engines import MOST_CONTEXT_TOKENS, OURS, THREADS, ServerCommand
from benchmarks.compare_http import WARM_UP_TOKENS, Served
from benchmarks.compare_settings import Plan
from benchmarks.peers.protocol import Decoded, Setup
from benchmarks.server_process import free_port, server
from benchmarks.worker_process import Worker, worker

from layered_llm.client.bench.prompts import TextPrompt, WordRange, synthetic_prompts

TOKEN_IDS: Final = range(1000, 40_000)
"""Ordinary tokens of the default model."""
DECODES: Final = 3
"""Runs of a decode case in a round."""
HTTP_REQUESTS: Final = 8
"""At least so many in a round, one run of the clients after the other: a run of one request takes a third of a second."""


def compare_checkouts(other: Checkout, plan: Plan, arguments: argparse.Namespace) -> bool:
    """Whether this tree is as fast in decode, prefill and over HTTP. Raises WorkerError, ServerError."""
    rounds = rounds_of(arguments)
    this, that = Opened(THIS, plan), Opened(other, plan)
    pairs = [
        *(_bare_pair(case, this, that, plan) for case in cases_of(plan)),
        *(_http_pair(clients, this, that, plan) for clients in plan.http_batches),
    ]
    with contextlib.ExitStack() as stack:

        def open_in_turns(number: int) -> None:
            # What is opened first is slower by 1 to 2 %, whatever its code; so each is first for half of the rounds.
            if number in {0, rounds // 2}:
                stack.close()
                for opened in (this, that) if number else (that, this):
                    opened.open(stack)

        return compare(other, pairs, rounds=rounds, bound=arguments.bound, json_file=arguments.json, before_round=open_in_turns)


class Opened:
    """A checkout's runtime and its server, both ready once opened; they sleep while they are not asked."""

    runtime: Worker
    served: Served

    def __init__(self, checkout: Checkout, plan: Plan) -> None:
        self._checkout, self._plan = checkout, plan

    def open(self, stack: contextlib.ExitStack) -> None:
        """Both end with the stack."""
        random, checkout = Random("contexts"), self._checkout
        contexts = [random.choices(TOKEN_IDS, k=self._plan.context_tokens) for _ in range(max(self._plan.batches))]
        setup = Setup(contexts=contexts, threads=THREADS, context_tokens=MOST_CONTEXT_TOKENS)
        command = checkout.python("-m", "benchmarks.peers.own_engine")
        self.runtime = stack.enter_context(worker(command, checkout.environment, checkout.directory))
        self.runtime.open(setup, timeout_s=OPEN_TIMEOUT_S)
        self.served = _serve(stack, checkout)


def _serve(stack: contextlib.ExitStack, checkout: Checkout) -> Served:
    port = str(free_port())
    command = ServerCommand(
        name=checkout.name,
        family=OURS,
        command=checkout.python("-m", "layered_llm", "--threads", str(THREADS), "--port", port),
        environment=checkout.environment,
        ready_path="/health",
        parameters={"ignore_eos": True},
    )
    ready = stack.enter_context(server(command.command, f"http://127.0.0.1:{port}", command.environment))
    served = Served(command=command, ready=ready)
    served.measure(["Warm up."], WARM_UP_TOKENS)
    return served


def _bare_pair(case: Case, this: Opened, that: Opened, plan: Plan) -> Pair:
    measures = (partial(_decode_rate, case, plan), partial(_prefill_rate, case))
    measure = measures[0] if case.is_decode else measures[1]
    mine, theirs = (measure(opened) for opened in (this, that))
    return Pair(name=case.name, unit="tokens/s", more_is_better=True, this=mine, other=theirs)


def _decode_rate(case: Case, plan: Plan, opened: Opened) -> Callable[[], float]:
    def measure() -> float:
        step_s: list[float] = []
        for _ in range(DECODES):
            steps = WARM_UP_STEPS + plan.steps
            decoded = Decoded(*opened.runtime.call("decode", timeout_s=CALL_TIMEOUT_S, batch=case.tokens, steps=steps))
            step_s.extend(decoded.step_s[WARM_UP_STEPS:])
        return case.tokens / statistics.median(step_s)

    return measure


def _prefill_rate(case: Case, opened: Opened) -> Callable[[], float]:
    prompts = (Random(f"prompt {number}").choices(TOKEN_IDS, k=case.tokens) for number in count())

    def measure() -> float:
        rate: float = case.tokens / opened.runtime.call("prefill", timeout_s=CALL_TIMEOUT_S, prompt=next(prompts))
        return rate

    return measure


def _http_pair(clients: int, this: Opened, that: Opened, plan: Plan) -> Pair:
    mine, theirs = (_http_rate(clients, opened, plan) for opened in (this, that))
    return Pair(name=f"HTTP, {clients} at a time", unit="tokens/s", more_is_better=True, this=mine, other=theirs)


def _http_rate(clients: int, opened: Opened, plan: Plan) -> Callable[[], float]:
    numbers = count()

    def measure() -> float:
        runs = max(1, HTTP_REQUESTS // clients)
        samples = [opened.served.measure(_prompts(next(numbers), clients, plan), plan.http_output_tokens) for _ in range(runs)]
        tokens = sum(sample.tokens_per_s * sample.duration_s for sample in samples)
        return tokens / sum(sample.duration_s for sample in samples)

    return measure


def _prompts(number: int, clients: int, plan: Plan) -> Sequence[str]:
    """The same for both checkouts, and others in every run: no cache has seen them."""
    words = WordRange(low=plan.http_prompt_words, high=plan.http_prompt_words)
    made = synthetic_prompts(Random(f"{number} {clients}"), words)
    return [prompt.text for prompt in islice(made, clients) if isinstance(prompt, TextPrompt)]
