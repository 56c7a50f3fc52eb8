"""The scenarios that the project tests itself with: every phase of a request, in every way in which one can be opened.

Must not know: faults, what is checked.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Final

import attrs
import trio

from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import (
    Detokenize,
    Detokenized,
    Rejected,
    TextAnswer,
    TextQuestion,
    Tokenize,
    Tokenized,
)
from layered_llm.domain.messages.prompts import ChatMessage, Prompt
from layered_llm.domain.ports.engine import Engine
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import RequestEnded
from layered_llm.domain.verdicts import RejectReason
from layered_llm.runtime.scripted.scripted_device import uneven_tokens
from layered_llm.runtime.scripted.scripts import EchoScript, FailingScript
from layered_llm.testing.asgi_target import http_exchange
from layered_llm.testing.byte_text import END, byte_text_files
from layered_llm.testing.cancel_everywhere import CLIENT_FAULTS, LIBRARY_FAULTS
from layered_llm.testing.injection import Fault
from layered_llm.testing.inline_engine import InlineEngineOptions, hash_script
from layered_llm.testing.outside_scenarios import ends_from_outside
from layered_llm.testing.playing import PromiseBroken, Target, TargetScenario
from layered_llm.testing.scenario_parts import (
    BEGUN_S,
    CHAT,
    CHUNKED,
    COMPLETIONS,
    LONG,
    SHORT,
    beside,
    chat,
    completion,
    later,
    library,
    read,
)

_TOKENIZE: Final = "/tokenize"


def asking(prompt: str) -> TargetScenario:
    """A target that asks for the tokens of a text and then for the text of the tokens."""

    async def run(engine: Engine, _disconnect: trio.Event) -> None:
        tokens = await _answered(engine, lambda request: Tokenize(request=request, prompt=Prompt.of_text(prompt)))
        if isinstance(tokens, Tokenized):
            token_ids = tokens.token_ids
            text = await _answered(engine, lambda request: Detokenize(request=request, token_ids=token_ids))
            if isinstance(text, Detokenized) and text.text != prompt:
                raise PromiseBroken(f"the tokens of {prompt!r} are those of {text.text!r}")

    return run


async def _answered(engine: Engine, question: Callable[[RequestId], TextQuestion]) -> TextAnswer | None:
    """None when the engine stops or starts again."""
    with contextlib.ExitStack() as owner:
        asked = engine.ask(owner, question)
        answer = asked if isinstance(asked, Rejected) else await asked.answer()
    if not isinstance(answer, Rejected):
        return answer
    if answer.reason not in (RejectReason.SHUTTING_DOWN, RejectReason.NOT_READY):
        raise PromiseBroken(f"the answer is {answer}")
    return None


async def _read_in_tasks(engine: Engine, _disconnect: trio.Event) -> None:
    """Two requests with one prompt, read by tasks of the target that do not know of each other."""
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(read, engine, CHUNKED)


async def _read_what_comes(engine: Engine, _disconnect: trio.Event) -> None:
    """Reads three requests; a process that fell behind is told of their end or their refusal."""
    with contextlib.ExitStack() as owner:
        for place in range(3):
            stream = engine.open(owner, Prompt.of_text(f"{SHORT} {place}"), SamplingParams(max_tokens=6))
            if isinstance(stream, Rejected) or isinstance(await stream.verdict(), Rejected):
                continue
            while not isinstance((await stream.receive())[-1], RequestEnded):
                pass


async def _stop_reading(engine: Engine, _disconnect: trio.Event) -> None:
    """Leaves a stream by itself, after its first tokens."""
    with contextlib.ExitStack() as owner:
        prompt = Prompt.of_chat([ChatMessage(role="user", content=SHORT)])
        stream = engine.open(owner, prompt, SamplingParams(max_tokens=8))
        if not isinstance(stream, Rejected):
            await stream.verdict()
            await stream.receive()
    await trio.lowlevel.checkpoint()


def all_scenarios() -> tuple[Target, ...]:
    """Every one, by groups: library, refusals, HTTP, ends from outside, ends of the engine and of its processes."""
    options = InlineEngineOptions(text_files=byte_text_files(), script=hash_script(ord("a"), 26))
    return (
        *_library(options),
        *_crowded(options),
        *_refused(options),
        *_failed(options),
        *_uneven(options),
        *_http(options),
        *ends_from_outside(options),
        *_ends(options),
    )


def _library(options: InlineEngineOptions) -> Iterator[Target]:
    echo = attrs.evolve(options, script=EchoScript())
    chunks = attrs.evolve(options, chunked_prefill_size=8)
    yield Target(name="length", run=library(max_tokens=3), options=options)
    yield Target(name="eos", run=library(f"abc{END}d", max_tokens=8), options=echo)
    yield Target(name="stop-string", run=library("one two three", max_tokens=12, stop=("two",)), options=echo)
    yield Target(name="stop-by-reader", run=_stop_reading, options=options)
    yield Target(name="choices-2", run=library(n=2), options=options)
    yield Target(name="choices-3", run=library(n=3, max_tokens=3), beside=(beside(max_tokens=6),), options=options)
    yield Target(name="prefill-chunks", run=library(CHUNKED, max_tokens=2), beside=(beside(max_tokens=12),), options=chunks)
    yield Target(name="tokenized-aside", run=library(LONG, max_tokens=2), options=_with_context(options, 8192))
    yield Target(name="questions", run=asking(SHORT), beside=(beside(),), options=options)
    yield Target(name="questions-aside", run=asking(LONG), beside=(beside(),), options=options)
    yield Target(name="one-step-in-flight", run=library(max_tokens=5), beside=(beside(),), options=_one_by_one(options))
    yield Target(name="two-ranks", run=library(n=2), beside=(beside(),), options=attrs.evolve(options, ranks=2))
    yield Target(name="late-answers", run=library(), options=attrs.evolve(options, largest_delay_s=0.3))


def _crowded(options: InlineEngineOptions) -> Iterator[Target]:
    full = attrs.evolve(options, max_running_requests=1)
    small = attrs.evolve(options, pages=12, chunked_prefill_size=8)
    others = tuple(beside(f"{SHORT} {place}", max_tokens=6) for place in range(3))
    yield Target(name="queued", run=later(library(max_tokens=2)), beside=(beside(max_tokens=12),), options=full)
    yield Target(name="few-pages", run=library(max_tokens=12), beside=others, options=small)
    yield Target(name="few-pages-one-step-in-flight", run=library(n=2), beside=others, options=_one_by_one(small))
    growing, scarce = partial(library, max_tokens=14), attrs.evolve(options, pages=8)
    rival = partial(beside, f"{SHORT}!", max_tokens=14)
    yield Target(name="preempted", run=later(growing()), beside=(rival(),), options=scarce)
    yield Target(name="preempts-another", run=growing(), beside=(rival(after_s=BEGUN_S),), options=scarce)
    yield Target(name="preempted-choice", run=growing(n=2), options=_one_by_one(scarce))
    yield Target(name="shared-prompt", run=_read_in_tasks, beside=(beside(CHUNKED, max_tokens=8),), options=options)
    yield Target(name="two-text-workers", run=_read_in_tasks, beside=others, options=attrs.evolve(options, text_workers=2))


def _refused(options: InlineEngineOptions) -> Iterator[Target]:
    queue = attrs.evolve(options, max_running_requests=1, max_queued_requests=1)
    reason = RejectReason.CONTEXT_LENGTH_EXCEEDED
    late = partial(library, refused=RejectReason.QUEUE_FULL)
    yield Target(name="context-too-long", run=library(CHUNKED * 4, refused=reason), options=options)
    busy = (beside(max_tokens=12), beside(max_tokens=12, after_s=BEGUN_S / 2))
    yield Target(name="queue-full", run=later(late()), beside=busy, options=queue)
    outbox = attrs.evolve(options, max_open_requests=1)
    yield Target(name="process-full", run=later(late()), beside=(beside(max_tokens=12),), options=outbox)


def _failed(options: InlineEngineOptions) -> Iterator[Target]:
    """Rows without a result: the first token's of a prompt, of one in chunks, and a later one of several choices."""
    script = FailingScript(script=options.script, token=ord("~"))
    at_once = attrs.evolve(options, script=script, chunked_prefill_size=8)
    later_on = attrs.evolve(options, script=attrs.evolve(script, position=2))
    again = tuple(beside(f"{CHUNKED}~", after_s=after_s, fails=True) for after_s in (BEGUN_S, 10 * BEGUN_S))
    others = (beside(max_tokens=6), *again)
    yield Target(name="row-fails", run=library(f"{CHUNKED}~", fails=True), beside=others, options=at_once)
    yield Target(name="choices-fail", run=library(f"{SHORT}~", fails=True, n=3), beside=(beside(),), options=later_on)
    failed = HTTPStatus.INTERNAL_SERVER_ERROR
    make = partial(Target, options=at_once, faults=CLIENT_FAULTS)
    yield make(name="http-row-fails", run=http_exchange(COMPLETIONS, completion(prompt=f"{SHORT}~"), status=failed))
    yield make(name="http-row-fails-stream", run=http_exchange(COMPLETIONS, completion(prompt=f"{SHORT}~", stream=True)))


def _uneven(options: InlineEngineOptions) -> Iterator[Target]:
    """A device whose rows yield 0, 1, 2 or 3 tokens: also beside rows that fail, and where choices are preempted."""
    uneven = attrs.evolve(options, decode_tokens=3, yields=uneven_tokens)
    fails = attrs.evolve(uneven, script=FailingScript(script=options.script, token=ord("~"), position=2))
    others = (beside(max_tokens=6), beside(CHUNKED, max_tokens=9))
    yield Target(name="rows-uneven", run=library(max_tokens=8, n=2), beside=others, options=uneven)
    few = attrs.evolve(uneven, pages=24)
    yield Target(name="rows-uneven-preempted", run=library(CHUNKED, max_tokens=12), beside=others, options=few)
    yield Target(name="rows-uneven-fail", run=library(f"{SHORT}~", fails=True, n=3), beside=others, options=fails)


def _http(options: InlineEngineOptions) -> Iterator[Target]:
    make = partial(Target, options=options, faults=CLIENT_FAULTS)
    too_long = completion(prompt=CHUNKED * 4)
    yield make(name="http-chat", run=http_exchange(CHAT, chat()))
    yield make(name="http-chat-stream", run=http_exchange(CHAT, chat(stream=True), send_s=0.003))
    yield make(name="http-completions", run=http_exchange(COMPLETIONS, completion(n=2)))
    yield make(
        name="http-completions-stream",
        run=http_exchange(COMPLETIONS, completion(stream=True, n=2, prompt=[SHORT, CHUNKED])),
        beside=(beside(max_tokens=6),),
    )
    yield make(name="http-tokenize", run=http_exchange(_TOKENIZE, {"prompt": LONG}), beside=(beside(),))
    yield make(name="http-slow-client", run=http_exchange(CHAT, chat(stream=True), send_s=0.5))
    yield make(name="http-refused", run=http_exchange(COMPLETIONS, too_long, status=HTTPStatus.BAD_REQUEST))


def _ends(options: InlineEngineOptions) -> Iterator[Target]:
    make = partial(Target, options=options, faults=(Fault.SHUTDOWN,))
    yield make(name="shutdown", run=library(n=2), beside=(beside(max_tokens=12),))
    yield make(name="shutdown-http", run=http_exchange(CHAT, chat(stream=True)))
    process = partial(Target, in_own_process=True)
    death = (*LIBRARY_FAULTS, Fault.DEATH)
    yield process(name="process-dies", run=library(n=2), beside=(beside(max_tokens=6),), options=options, faults=death)
    yield process(
        name="process-dies-tokenizing",
        run=library(LONG, max_tokens=2),
        options=_with_context(options, 8192),
        faults=(Fault.DEATH,),
    )
    yield process(name="process-dies-asking", run=asking(LONG), options=options, faults=(Fault.DEATH,))
    slow = attrs.evolve(options, high_water_mark=3)
    yield process(
        name="process-stalls", run=_read_what_comes, beside=(beside(max_tokens=12),), options=slow, faults=(Fault.STALL,)
    )


def _one_by_one(options: InlineEngineOptions) -> InlineEngineOptions:
    return attrs.evolve(options, steps_in_flight=1)


def _with_context(options: InlineEngineOptions, tokens: int) -> InlineEngineOptions:
    return attrs.evolve(
        options, context_tokens=tokens, pages=2 * tokens // options.page_size_tokens, chunked_prefill_size=tokens
    )
