"""Scenarios whose requests neither the model nor their reader ends: by name, by a limit of time, by a drain.

Must not know: faults, what is checked.
"""

import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

import attrs
import trio

from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.ports.engine import Engine, EngineStream, RequestAborted
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import RequestEnded
from layered_llm.testing.asgi_target import AS_EVER, Serving, ended_by_id, http_exchange
from layered_llm.testing.cancel_everywhere import CLIENT_FAULTS, LIBRARY_FAULTS
from layered_llm.testing.injection import Fault
from layered_llm.testing.inline_engine import InlineEngineOptions
from layered_llm.testing.playing import PromiseBroken, Scenario, Target
from layered_llm.testing.scenario_parts import BEGUN_S, CHAT, COMPLETIONS, SHORT, beside, chat, completion, later

_ENDLESS_TOKENS: Final = 100


def ends_from_outside(options: InlineEngineOptions) -> Iterator[Target]:
    """Ends that neither the model nor the reader decides."""
    yield Target(name="ended-by-name", run=_read_until_ended_by_name, beside=(beside(max_tokens=6),), options=options)
    yield Target(
        name="ended-by-another-process",
        run=_read_until_all_are_ended,
        beside=(_end_all,),
        options=options,
        faults=(*LIBRARY_FAULTS, Fault.DEATH),
        in_own_process=True,
    )
    body = chat(max_tokens=_ENDLESS_TOKENS)
    yield Target(name="http-ended-by-id", run=ended_by_id(CHAT, body), options=options, faults=CLIENT_FAULTS)
    impatient = attrs.evolve(options, max_running_requests=1, queue_timeout_s=0.05)
    busy = (beside(max_tokens=20),)
    yield Target(name="queue-timeout", run=later(_read_what_is_given_up), beside=busy, options=impatient)
    yield from _http_in_time("queue-timeout", HTTPStatus.SERVICE_UNAVAILABLE, impatient, AS_EVER, others=busy)
    slow = attrs.evolve(options, step_s=0.1)
    hasty, restless = Serving(first_token_timeout_s=0.05), Serving(idle_timeout_s=0.05)
    yield from _http_in_time("first-token-timeout", HTTPStatus.GATEWAY_TIMEOUT, slow, hasty)
    yield from _http_in_time("idle-timeout", HTTPStatus.GATEWAY_TIMEOUT, slow, restless)
    draining = Serving(drain_s=0.03, drain_after_s=2 * BEGUN_S)
    yield from _http_in_time("shutting-down", HTTPStatus.SERVICE_UNAVAILABLE, options, draining)


def _http_in_time(
    name: str, status: int, options: InlineEngineOptions, serving: Serving, others: tuple[Scenario, ...] = ()
) -> Iterator[Target]:
    """A response, whole and streamed, that ends with an error of this name, since something takes too long."""
    for stream in (False, True):
        body = completion(stream=stream, max_tokens=20)
        exchange = http_exchange(
            COMPLETIONS, body, status=HTTPStatus.OK if stream else status, error=name.replace("-", "_"), serving=serving
        )
        yield Target(
            name=f"http-{name}" + ("-stream" if stream else ""),
            run=later(exchange),
            beside=others,
            options=options,
            faults=CLIENT_FAULTS,
        )


async def _read_until_ended_by_name(engine: Engine, _disconnect: trio.Event) -> None:
    """Reads a request that another task ends by its name, after its first tokens."""
    with contextlib.ExitStack() as owner:
        stream = engine.open(owner, Prompt.of_text(SHORT), SamplingParams(max_tokens=_ENDLESS_TOKENS))
        if isinstance(stream, Rejected) or isinstance(await stream.verdict(), Rejected):
            return
        await stream.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.abort, stream.request)
            await _read_to_the_abort(stream)


async def _read_until_all_are_ended(engine: Engine, _disconnect: trio.Event) -> None:
    """Reads a request until somebody ends all that there are."""
    with contextlib.ExitStack() as owner:
        stream = engine.open(owner, Prompt.of_text(SHORT), SamplingParams(max_tokens=_ENDLESS_TOKENS, n=2))
        if isinstance(stream, Rejected):
            return
        await _read_to_the_abort(stream)


async def _read_to_the_abort(stream: EngineStream) -> None:
    try:
        if isinstance(await stream.verdict(), Rejected):
            return
        while not isinstance((await stream.receive())[-1], RequestEnded):
            pass
    except RequestAborted:
        return
    raise PromiseBroken("a request that was ended by its name went on to its own end")


async def _end_all(engine: Engine) -> None:
    await trio.sleep(2 * BEGUN_S)
    await engine.abort(None)


async def _read_what_is_given_up(engine: Engine, _disconnect: trio.Event) -> None:
    """Opens a request that waits too long to be started."""
    with contextlib.ExitStack() as owner:
        stream = engine.open(owner, Prompt.of_text(SHORT), SamplingParams(max_tokens=2, n=2))
        if isinstance(stream, Rejected) or isinstance(await stream.verdict(), Rejected):
            return
        while not isinstance(end := (await stream.receive())[-1], RequestEnded):
            pass
        if end.error is None:
            raise PromiseBroken("a request that could not start in time has an answer")
