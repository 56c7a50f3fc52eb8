"""What scenarios are made of: requests that are opened and read, and the bodies of HTTP requests.

Must not know: faults, what is checked.
"""

import contextlib
from typing import Any, Final

import trio

from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.ports.engine import Engine, EngineStream
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import RequestEnded
from layered_llm.domain.verdicts import RejectReason
from layered_llm.testing.asgi_target import MODEL
from layered_llm.testing.playing import PromiseBroken, Scenario, TargetScenario

SHORT: Final = "hello there"
CHUNKED: Final = "a prompt of forty tokens is cut in chunks"
LONG: Final = "far more than is tokenized between two streams " * 100
BEGUN_S: Final = 0.02
"""Longer than any message is on its way, shorter than any output takes."""
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"


async def read(
    engine: Engine, prompt: str = SHORT, *, refused: RejectReason | None = None, fails: bool = False, **params: Any
) -> None:
    """Opens a request and reads it to its end; one that is to be refused must be, for this reason, and one that fails must."""
    with contextlib.ExitStack() as owner:
        stream = engine.open(owner, Prompt.of_text(prompt), SamplingParams(**({"max_tokens": 4} | params)))
        await read_stream(stream, refused, fails=fails)


async def read_stream(stream: EngineStream | Rejected, refused: RejectReason | None = None, *, fails: bool = False) -> None:
    """Reads a request to its end."""
    verdict = stream if isinstance(stream, Rejected) else await stream.verdict()
    reason = verdict.reason if isinstance(verdict, Rejected) else None
    if reason in (RejectReason.SHUTTING_DOWN, RejectReason.NOT_READY):
        return
    if reason is not refused:
        raise PromiseBroken(f"the verdict is {verdict}")
    while not isinstance(stream, Rejected) and reason is None:
        events = await stream.receive()
        if isinstance(events[-1], RequestEnded):
            if fails and events[-1].error is None:
                raise PromiseBroken("a request whose row fails ends without an error")
            return


def library(prompt: str = SHORT, *, refused: RejectReason | None = None, fails: bool = False, **params: Any) -> TargetScenario:
    """A target that opens one request and reads it to its end."""

    async def run(engine: Engine, _disconnect: trio.Event) -> None:
        await read(engine, prompt, refused=refused, fails=fails, **params)

    return run


def beside(prompt: str = SHORT, *, after_s: float = 0.0, **params: Any) -> Scenario:
    """A scenario that opens one request and reads it to its end."""

    async def run(engine: Engine) -> None:
        await trio.sleep(after_s)
        await read(engine, prompt, **params)

    return run


def later(run: TargetScenario) -> TargetScenario:
    """The target, when what runs beside it has begun."""

    async def later(engine: Engine, disconnect: trio.Event) -> None:
        await trio.sleep(BEGUN_S)
        await run(engine, disconnect)

    return later


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": SHORT}], **fields}


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 4, "prompt": SHORT, **fields}
