"""Servers over HTTP, taking turns, and beside them our runtime with the same prompts and no server."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import Any, Final, Protocol, TypeAlias

import attrs
import httpx
import trio
from benchmarks.compare_bare import CALL_TIMEOUT_S, open_worker, turned
from benchmarks.compare_engines import OURS, THREADS, Places, ServerCommand, engines, is_installed, servers
from benchmarks.compare_progress import Progress, rounds_until
from benchmarks.compare_settings import Plan
from benchmarks.peers.protocol import Setup
from benchmarks.processor_time import ProcessorTimes
from benchmarks.server_process import ReadyServer, ServerError, free_port, server
from benchmarks.worker_process import Worker, WorkerError
from tokenizers import Tokenizer

from layered_llm.client import AsyncChatClient, StreamTimeouts
from layered_llm.client.bench.load import ClosedLoop, Limits, run_closed_loop
from layered_llm.client.bench.prompts import TextPrompt, WordRange, synthetic_prompts
from layered_llm.client.bench.records import RequestRecord, RunRecord, Tally
from layered_llm.client.bench.sender import Endpoint, StreamSender
from layered_llm.client.bench.statistics import describe
from layered_llm.client.errors import ClientError

SLOW_S: Final = 20.0
"""What takes longer is measured once."""
ANSWER_TOKENS: Final = 256
"""Room for a prompt and its answer."""
RUNTIME_ALONE: Final = "our runtime, no server"
WARM_UP_TOKENS: Final = 4
"""Of a first answer, which is not measured: weights that are not in memory yet, and what a library makes when it is asked."""


@attrs.frozen(kw_only=True)
class Sample:
    """One measurement."""

    tokens_per_s: float
    first_token_ms: float | None
    gap_ms: float | None
    """None where nothing is streamed."""
    others_cores: float
    duration_s: float


@attrs.define
class HttpResult:
    """All that was measured over HTTP."""

    batches: Sequence[int]
    samples: dict[str, dict[int, list[Sample]]] = attrs.Factory(dict)
    """By server and clients; one for each round. Our runtime by itself is RUNTIME_ALONE."""
    start_s: dict[str, float] = attrs.Factory(dict)
    left_out: dict[str, str] = attrs.Factory(dict)
    """Why, by server."""


class RequestsError(Exception):
    """A server did not answer as asked; one line that says how."""


class Asked(Protocol):
    """What is given the same prompts as all others."""

    def measure(self, prompts: Sequence[str], output_tokens: int) -> Sample:
        """All at once. Raises RequestsError, WorkerError."""


Start: TypeAlias = Callable[[contextlib.ExitStack], Asked]
"""Ends with the stack. Raises ServerError, WorkerError."""


def measure_http(plan: Plan, places: Places, result: HttpResult, progress: Progress, keep: Callable[[], None]) -> None:
    """Starts all servers, measures them in rounds, and ends them; `keep` is called behind each round."""
    commands = chosen_servers(plan, places)
    end_s = time.monotonic() + plan.http_limit_s
    with contextlib.ExitStack() as stack:
        starts: dict[str, Start] = {command.name: partial(_start, command, result) for command in commands}
        starts[RUNTIME_ALONE] = partial(_start_alone, plan, places)
        running = _start_all(stack, starts, result, progress)
        rounds = Rounds(plan=plan, names=[*starts], result=result, progress=progress)
        for number in rounds_until(plan.rounds, end_s, progress, http_steps(plan, places)):
            rounds.run(number, running)
            keep()


def chosen_servers(plan: Plan, places: Places) -> list[ServerCommand]:
    return [one for one in servers(places) if one.family in {OURS, *plan.families}]


def http_steps(plan: Plan, places: Places) -> int:
    """Measurements in a round."""
    return len(plan.http_batches) * (len(chosen_servers(plan, places)) + 1)


def _start_all(
    stack: contextlib.ExitStack,
    starts: Mapping[str, Start],
    result: HttpResult,
    progress: Progress,
) -> dict[str, "Running"]:
    running = {}
    for name, start in starts.items():
        with progress.step(f"starting {name}"), contextlib.ExitStack() as own:
            try:
                asked = start(own)
                asked.measure(["Warm up."], WARM_UP_TOKENS)
            except (ServerError, RequestsError, WorkerError) as error:
                result.left_out[name] = str(error).strip().rpartition("\n")[2]
            else:
                running[name] = Running(asked=asked, ending=stack.enter_context(own.pop_all()))
    return running


@attrs.frozen(kw_only=True)
class Running:
    """What is ready, and what ends it."""

    asked: Asked
    ending: contextlib.ExitStack


def _start(command: ServerCommand, result: HttpResult, stack: contextlib.ExitStack) -> "Served":
    """Raises ServerError."""
    if not is_installed(command.command):
        raise ServerError(f"not installed: there is no {command.command[0]}")
    port = str(free_port())
    opened = server([*command.command, port], f"http://127.0.0.1:{port}", command.environment, ready_path=command.ready_path)
    ready = stack.enter_context(opened)
    result.start_s[command.name] = ready.start_s
    return Served(command=command, ready=ready)


def _start_alone(plan: Plan, places: Places, stack: contextlib.ExitStack) -> "Alone":
    """Raises WorkerError."""
    setup = Setup(contexts=[[0]], threads=THREADS, context_tokens=max(plan.http_batches) * ANSWER_TOKENS)
    own = next(engine for engine in engines(places) if engine.name == OURS)
    tokenizer = Tokenizer.from_file(str(places.hugging_face / "tokenizer.json"))
    return Alone(tokenizer=tokenizer, worker=open_worker(stack, own, setup))


@attrs.frozen(kw_only=True)
class Rounds:
    """Measures all servers once a round."""

    plan: Plan
    names: Sequence[str]
    """Of all, whether they could be started or not."""
    result: HttpResult
    progress: Progress

    def run(self, number: int, running: dict[str, Running]) -> None:
        """A server that fails is left out from then on: it is taken from `running`."""
        for clients in self.plan.http_batches:
            for name in turned(self.names, number):
                with self.progress.step(f"round {number + 1}/{self.plan.rounds}, {clients} clients, {name}"):
                    self._measure(running, name, number, clients)

    def _measure(self, running: dict[str, Running], name: str, number: int, clients: int) -> None:
        done = self.result.samples.setdefault(name, {}).setdefault(clients, [])
        if name not in running or (done and done[0].duration_s > SLOW_S):
            return
        try:
            done.append(running[name].asked.measure(self._prompts(number, clients), self.plan.http_output_tokens))
        except (RequestsError, WorkerError) as error:
            self.result.left_out[name] = f"{clients} at a time: {error}"
            running.pop(name).ending.close()

    def _prompts(self, number: int, clients: int) -> list[str]:
        """The same for every server, and of every round and count of clients others: no cache has seen them."""
        words = WordRange(low=self.plan.http_prompt_words, high=self.plan.http_prompt_words)
        made = synthetic_prompts(Random(f"{number} {clients}"), words)
        return [prompt.text for prompt in islice(made, clients) if isinstance(prompt, TextPrompt)]


@attrs.frozen(kw_only=True)
class Served:
    """Over HTTP, streamed."""

    command: ServerCommand
    ready: ReadyServer

    def measure(self, prompts: Sequence[str], output_tokens: int) -> Sample:
        before = ProcessorTimes.now()
        run = trio.run(partial(_ask_all, self, [TextPrompt(text) for text in prompts], output_tokens))
        spent = ProcessorTimes.now().since(before, [self.ready.pid], alone=[os.getpid()])
        return _sample(run, spent.others_s / run.duration_s)


@attrs.frozen(kw_only=True)
class Alone:
    """Our runtime by itself."""

    tokenizer: Tokenizer
    worker: Worker

    def measure(self, prompts: Sequence[str], output_tokens: int) -> Sample:
        ids = [self.tokenizer.encode(text).ids for text in prompts]
        before = ProcessorTimes.now()
        try:
            seconds = self.worker.call("answer", timeout_s=CALL_TIMEOUT_S, prompts=ids, tokens=output_tokens)
        except WorkerError:
            self.worker.kill()
            raise
        spent = ProcessorTimes.now().since(before, [self.worker.pid], alone=[os.getpid()])
        return Sample(
            tokens_per_s=len(prompts) * output_tokens / seconds,
            first_token_ms=None,
            gap_ms=None,
            others_cores=spent.others_s / seconds,
            duration_s=seconds,
        )


async def _ask_all(served: Served, prompts: Sequence[TextPrompt], output_tokens: int) -> RunRecord:
    """All at once. Raises RequestsError."""
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": output_tokens, **served.command.parameters}
    http = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=CALL_TIMEOUT_S)
    patience = StreamTimeouts(first_token_s=CALL_TIMEOUT_S, idle_s=CALL_TIMEOUT_S)
    async with AsyncChatClient(served.ready.url, timeouts=patience, http=http) as client:
        try:
            models = await client.models()
        except ClientError as error:
            raise RequestsError(f"it does not tell its models: {error}") from None
        sender = StreamSender(client=client, endpoint=Endpoint.COMPLETIONS, model=models[0], parameters=parameters)
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
        first_token_ms=first_token.p50 * 1e3 if first_token else None,
        gap_ms=gaps.p50 * 1e3 if gaps else None,
        others_cores=others_cores,
        duration_s=run.duration_s,
    )


def _output_tokens(request: RequestRecord) -> int:
    """By the server's own count, or by its chunks where it tells none."""
    return len(request.chunk_times_s) if request.usage is None else request.usage.completion_tokens
