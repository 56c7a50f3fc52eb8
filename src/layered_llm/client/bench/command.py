"""The benchmark as a command: from settings to a report.

Must not know: how requests are sent, how numbers are computed.
"""

import argparse
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final, TextIO, assert_never

import attrs
import httpx
import trio

from layered_llm.client.bench.load import (
    ClosedLoop,
    OpenLoop,
    PlannedRequest,
    Sender,
    poisson_arrivals,
    run_closed_loop,
    run_open_loop,
)
from layered_llm.client.bench.prompts import ChatPrompt, Prompt, PromptFileError, read_prompts, repeat, synthetic_prompts
from layered_llm.client.bench.records import RunRecord, Tally, show_progress
from layered_llm.client.bench.report import report_json, report_text
from layered_llm.client.bench.sender import Endpoint, StreamSender
from layered_llm.client.bench.settings import BenchSettings, read_settings
from layered_llm.client.bench.statistics import Summary, summarize
from layered_llm.client.chat import AsyncChatClient
from layered_llm.client.errors import ApiStatusError, ClientError

_SOME_FAILED: Final = 1
_NOTHING_MEASURED: Final = 2
_INTERRUPTED: Final = 130

_PLOT_HINT: Final = "no plot: it needs matplotlib (pip install 'layered-llm[plot]')"
_KEEP_ALIVE_S: Final = 2.0
"""Some servers close an idle connection after 5 s: one that is nearly that old would break under the next request."""


class BenchError(Exception):
    """Nothing can be measured; says why in one sentence."""


def run_bench(args: argparse.Namespace) -> int:
    """Runs the benchmark that parsed flags ask for, and gives the exit status."""
    settings = read_settings(args)
    if settings.plot_file is not None and not _can_plot():
        sys.stderr.write(_PLOT_HINT + "\n")
    try:
        measurement = trio.run(_measure, settings, _prompts(settings), sys.stderr)
        summary = summarize(measurement.run)
        sys.stdout.write(report_text(measurement.title, summary) + "\n")
        _write_files(settings, measurement, summary)
    except (BenchError, ClientError, PromptFileError, OSError) as error:
        sys.stderr.write(f"layered-llm bench: {error}\n")
        return _NOTHING_MEASURED
    except KeyboardInterrupt:
        return _INTERRUPTED
    return _exit_status(summary)


@attrs.frozen(kw_only=True)
class _Measurement:
    title: str
    model: str
    run: RunRecord


async def _measure(settings: BenchSettings, prompts: Iterator[Prompt], progress_out: TextIO) -> _Measurement:
    async with _client(settings) as client:
        model = settings.model or await _first_model(client)
        sender = StreamSender(client=client, endpoint=settings.endpoint, model=model, parameters=settings.parameters)
        await _warm_up(islice(prompts, settings.warmup_requests), sender)
        run = await _run(settings, prompts, sender, progress_out)
    return _Measurement(title=_title(settings, model), model=model, run=run)


async def _run(settings: BenchSettings, prompts: Iterator[Prompt], sender: Sender, progress_out: TextIO) -> RunRecord:
    tally = Tally()
    is_whole = False
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at_signal, signals, nursery.cancel_scope)
            if settings.shows_progress:
                nursery.start_soon(show_progress, tally, settings.limits.requests, progress_out)
            await _load(settings, prompts, sender, tally)
            is_whole = True
            nursery.cancel_scope.cancel()
    return tally.close(interrupted=not is_whole)


async def _load(settings: BenchSettings, prompts: Iterator[Prompt], sender: Sender, tally: Tally) -> None:
    match settings.pattern:
        case ClosedLoop() as loop:
            await run_closed_loop(prompts, loop, settings.limits, sender, tally)
        case OpenLoop(rate_per_s=rate_per_s):
            arrivals_s = poisson_arrivals(_random(settings, "arrivals"), rate_per_s)
            await run_open_loop(prompts, arrivals_s, settings.limits, sender, tally)
        case other:
            assert_never(other)


async def _cancel_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _number in signals:
        scope.cancel()


async def _first_model(client: AsyncChatClient) -> str:
    try:
        models = await client.models()
    except ApiStatusError as error:
        if error.status == HTTPStatus.UNAUTHORIZED:
            raise BenchError(f"{error}; --api-key KEY sends one") from error
        raise
    if not models:
        raise BenchError("the server lists no model: name one with --model")
    return models[0]


async def _warm_up(prompts: Iterator[Prompt], sender: Sender) -> None:
    tally = Tally()
    for index, prompt in enumerate(prompts):
        record = await sender.send(PlannedRequest(index=index, due_s=trio.current_time(), prompt=prompt), tally)
        if record.failure is not None:
            raise BenchError(f"the warm-up request failed: {record.failure.kind}: {record.failure.message}")


def _client(settings: BenchSettings) -> AsyncChatClient:
    # httpx's default of 100 connections would turn an open loop into a closed one.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_ALIVE_S)
    try:
        return AsyncChatClient(
            settings.url, api_key=settings.api_key, timeouts=settings.timeouts, http=httpx.AsyncClient(limits=limits)
        )
    except ValueError as error:
        raise BenchError(str(error)) from error


def _prompts(settings: BenchSettings) -> Iterator[Prompt]:
    if settings.prompt_file is None:
        return synthetic_prompts(_random(settings, "prompts"), settings.words, shared_prefix_words=settings.shared_prefix_words)
    prompts = read_prompts(settings.prompt_file)
    if settings.endpoint is Endpoint.COMPLETIONS and any(isinstance(prompt, ChatPrompt) for prompt in prompts):
        raise BenchError(f"{settings.prompt_file}: conversations need --endpoint chat")
    return repeat(prompts)


def _random(settings: BenchSettings, purpose: str) -> Random:
    # One generator for each purpose: the same seed asks the same prompts in both loops.
    return Random(f"{settings.seed} {purpose}")  # noqa: S311 - reproducible on purpose


def _title(settings: BenchSettings, model: str) -> str:
    match settings.pattern:
        case ClosedLoop(clients=clients):
            pattern = f"closed loop, {clients} clients"
        case OpenLoop(rate_per_s=rate_per_s):
            pattern = f"open loop, {rate_per_s:g} requests/s"
        case other:
            assert_never(other)
    return f"{settings.url}  {settings.endpoint.value}  {model}  {pattern}"


def _write_files(settings: BenchSettings, measurement: _Measurement, summary: Summary) -> None:
    if settings.json_file is not None:
        report = report_json(_settings_json(settings, measurement.model), measurement.run, summary)
        settings.json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if settings.plot_file is not None and _can_plot():
        from layered_llm.client.bench.plot import save_plot  # noqa: PLC0415 - matplotlib is optional

        save_plot(measurement.title, measurement.run, settings.plot_file)


def _settings_json(settings: BenchSettings, model: str) -> dict[str, Any]:
    fields = attrs.asdict(
        settings,
        filter=lambda field, _value: field.name != "api_key",
        value_serializer=lambda _owner, _field, value: _plain(value),
    )
    return {**fields, "model": model}


def _plain(value: object) -> object:
    match value:
        case Path():
            return str(value)
        case Endpoint():
            return value.value
        case _:
            return value


def _can_plot() -> bool:
    return find_spec("matplotlib") is not None


def _exit_status(summary: Summary) -> int:
    if summary.interrupted:
        return _INTERRUPTED
    if not summary.completed:
        return _NOTHING_MEASURED
    return _SOME_FAILED if summary.failed else 0
