"""Servers over HTTP, taking turns, and beside them our runtime with the same prompts and no server."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import Any, Final

import attrs
import httpx
import trio
from benchmarks.compare_bare import CALL_TIMEOUT_S, open_worker
from benchmarks.compare_engines import OURS, THREADS, Places, ServerCommand, engines, is_installed, servers
from benchmarks.compare_settings import Plan
from benchmarks.peers.protocol import Setup
from benchmarks.processor_time import ProcessorTimes
from benchmarks.server_process import ReadyServer, ServerError, free_port, server
from benchmarks.worker_process import Worker, WorkerError
from tokenizers import Tokenizer
from tqdm import tqdm

from layered_llm.client import AsyncChatClient, StreamTimeouts
from layered_llm.client.bench.load import ClosedLoop, Limits, run_closed_loop
from layered_llm.client.bench.prompts import TextPrompt, WordRange, synthetic_prompts
from layered_llm.client.bench.records import RequestRecord, RunRecord
from layered_llm.client.bench.sender import Endpoint, StreamSender
from layered_llm.client.bench.statistics import describe
from layered_llm.client.bench.tally import Tally

SLOW_S: Final = 20.0
"""What takes longer is measured once."""
ANSWER_TOKENS: Final = 256
"""Room for a prompt and its answer."""
RUNTIME_ALONE: Final = "our runtime, no server"


@attrs.frozen(kw_only=True)
class Sample:
    """One measurement."""

    tokens_per_s: float
    first_token_ms: float
    gap_ms: float
    others_cores: float
    duration_s: float


@attrs.define
class HttpResult:
    """All that was measured over HTTP."""

    batches: Sequence[int]
    samples: dict[str, dict[int, list[Sample]]] = attrs.Factory(dict)
    """By server and clients; one for each round."""
    alone_tokens_per_s: dict[int, list[float]] = attrs.Factory(dict)
    """Of our runtime by itself, by requests at a time."""
    start_s: dict[str, float] = attrs.Factory(dict)
    left_out: dict[str, str] = attrs.Factory(dict)
    """Why, by server."""


def measure_http(plan: Plan, places: Places, progress: "tqdm[Any]") -> HttpResult:
    """Starts all servers, measures them in rounds, and ends them."""
    tokenizer = Tokenizer.from_file(str(places.hugging_face / "tokenizer.json"))
    result = HttpResult(batches=plan.http_batches)
    with contextlib.ExitStack() as stack:
        running = _start_all(stack, plan, places, result, progress)
        setup = Setup(contexts=[[0]], threads=THREADS, context_tokens=max(plan.http_batches) * ANSWER_TOKENS)
        own = next(engine for engine in engines(places) if engine.name == OURS)
        alone = open_worker(stack, own, setup)
        rounds = Rounds(plan=plan, tokenizer=tokenizer, alone=alone, result=result, progress=progress)
        began_s, longest_s = time.monotonic(), 0.0
        for number in range(plan.rounds):
            round_began_s = time.monotonic()
            if round_began_s + longest_s > began_s + plan.http_limit_s:
                break
            rounds.run(number, running)
            longest_s = max(longest_s, time.monotonic() - round_began_s)
    return result


def _start_all(
    stack: contextlib.ExitStack, plan: Plan, places: Places, result: HttpResult, progress: "tqdm[Any]"
) -> dict[str, "Running"]:
    running = {}
    for command in servers(places):
        if command.family not in {OURS, *plan.families}:
            continue
        progress.set_description(f"starting {command.name}")
        if not is_installed(command.command):
            result.left_out[command.name] = f"not installed: there is no {command.command[0]}"
            continue
        try:
            running[command.name] = _start(stack, command)
        except ServerError as error:
            result.left_out[command.name] = str(error).strip().rpartition("\n")[2]
        else:
            result.start_s[command.name] = running[command.name].ready.start_s
    return running


@attrs.frozen(kw_only=True)
class Running:
    """A server that is ready."""

    command: ServerCommand
    ready: ReadyServer


def _start(stack: contextlib.ExitStack, command: ServerCommand) -> Running:
    port = str(free_port())
    opened = server([*command.command, port], f"http://127.0.0.1:{port}", command.environment, ready_path=command.ready_path)
    return Running(command=command, ready=stack.enter_context(opened))


@attrs.frozen(kw_only=True)
class Rounds:
    """Measures all servers once a round."""

    plan: Plan
    tokenizer: Tokenizer
    alone: Worker
    result: HttpResult
    progress: "tqdm[Any]"

    def run(self, number: int, running: dict[str, Running]) -> None:
        """A server that fails is left out from then on: it is taken from `running`."""
        for clients in self.plan.http_batches:
            self._measure_alone(number, clients)
            for name in [*running]:
                done = self.result.samples.setdefault(name, {}).setdefault(clients, [])
                if done and done[0].duration_s > SLOW_S:
                    continue
                self.progress.set_description(f"round {number + 1}/{self.plan.rounds}, {clients} clients, {name}")
                try:
                    done.append(self._measure(running[name], number, clients))
                except RequestsError as error:
                    del running[name]
                    self.result.left_out[name] = str(error)
                self.progress.update()

    def _measure(self, running: Running, number: int, clients: int) -> Sample:
        """Raises RequestsError."""
        prompts = [TextPrompt(text) for text in self._prompts(number, clients)]
        before = ProcessorTimes.now()
        run = trio.run(partial(_ask_all, running, prompts, self.plan.http_output_tokens))
        spent = ProcessorTimes.now().since(before, [running.ready.pid], alone=[os.getpid()])
        return _sample(run, spent.others_s / run.duration_s)

    def _measure_alone(self, number: int, requests: int) -> None:
        self.progress.set_description(f"round {number + 1}/{self.plan.rounds}, {requests} requests, {RUNTIME_ALONE}")
        ids = [self.tokenizer.encode(text).ids for text in self._prompts(number, requests)]
        tokens = self.plan.http_output_tokens
        try:
            seconds = self.alone.call("answer", timeout_s=CALL_TIMEOUT_S, prompts=ids, tokens=tokens)
        except WorkerError as error:
            raise SystemExit(f"{RUNTIME_ALONE}: {error}") from None
        self.result.alone_tokens_per_s.setdefault(requests, []).append(requests * tokens / seconds)
        self.progress.update()

    def _prompts(self, number: int, clients: int) -> list[str]:
        """The same for every server, and of every round and count of clients others: no cache has seen them."""
        words = WordRange(low=self.plan.http_prompt_words, high=self.plan.http_prompt_words)
        made = synthetic_prompts(Random(f"{number} {clients}"), words)
        return [prompt.text for prompt in islice(made, clients) if isinstance(prompt, TextPrompt)]


class RequestsError(Exception):
    """A server did not answer as asked; one line that says how."""


async def _ask_all(running: Running, prompts: Sequence[TextPrompt], output_tokens: int) -> RunRecord:
    """All at once. Raises RequestsError."""
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": output_tokens, **running.command.parameters}
    http = httpx.AsyncClient(limits=httpx.Limits(max_connections=None))
    patience = StreamTimeouts(first_token_s=CALL_TIMEOUT_S, idle_s=CALL_TIMEOUT_S)
    async with AsyncChatClient(running.ready.url, timeouts=patience, http=http) as client:
        model = (await client.models())[0]
        sender = StreamSender(client=client, endpoint=Endpoint.COMPLETIONS, model=model, parameters=parameters)
        tally = Tally()
        limits = Limits(requests=len(prompts), duration_s=None)
        await run_closed_loop(iter(prompts), ClosedLoop(clients=len(prompts)), limits, sender, tally)
    run = tally.close(interrupted=False)
    for request in run.requests:
        if request.failure is not None:
            raise RequestsError(f"{request.failure.kind}: {request.failure.message}")
        if _output_tokens(request) < output_tokens:
            raise RequestsError(f"an answer of {_output_tokens(request)} tokens where {output_tokens} were asked")
    return run


def _sample(run: RunRecord, others_cores: float) -> Sample:
    first_token = describe(request.first_token_s for request in run.requests)
    gaps = describe(gap for request in run.requests for gap in request.gaps_s)
    return Sample(
        tokens_per_s=sum(_output_tokens(request) for request in run.requests) / run.duration_s,
        first_token_ms=first_token.p50 * 1e3 if first_token else float("nan"),
        gap_ms=gaps.p50 * 1e3 if gaps else float("nan"),
        others_cores=others_cores,
        duration_s=run.duration_s,
    )


def _output_tokens(request: RequestRecord) -> int:
    """By the server's own count, or by its chunks where it tells none."""
    return len(request.chunk_times_s) if request.usage is None else request.usage.completion_tokens
