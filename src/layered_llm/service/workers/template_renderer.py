"""Renders conversations in a process of their own, which is ended and replaced when a template asks too much of it.

Must not know: what a template is, who asked.

A template that loops, or makes a text without end, is answered with a failure after a bounded time, and its process is gone;
the next conversation has a fresh one. A process costs 0.1 s of processor time, 20 MB of memory, and an exchange 0.07 ms.
"""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Final, Protocol

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.service.workers.template_process import (
    ANSWER,
    IS_TEXT,
    TIME_SIGNAL,
    TemplateLimits,
    conversation_frame,
    template_frame,
)
from layered_llm.text.chat_template import ChatTemplate, TemplateFailed

EXCHANGE_S: Final = 10.0
"""By the clock, for a process that was given no processor, or was stopped."""
DEFAULT_LIMITS: Final = TemplateLimits()
_KILLED_S: Final = 1.0
_READ_BYTES: Final = 1 << 16

logger = logging.getLogger(__name__)


class Renderer(Protocol):
    """What renders a text worker's conversations, one at a time."""

    async def start(self) -> None:
        """May be called before the first conversation, which then waits for nothing."""

    async def render(self, prompt: Prompt) -> str | TemplateFailed:
        """The text of `prompt.chat`."""


@attrs.frozen
class RendersHere:
    """For templates that are one's own."""

    _template: ChatTemplate | None

    async def start(self) -> None:
        await trio.lowlevel.checkpoint()

    async def render(self, prompt: Prompt) -> str | TemplateFailed:
        await trio.lowlevel.checkpoint()
        return _needed(self._template).render(prompt.chat or (), prompt.rendering)


@contextlib.asynccontextmanager
async def open_renderer(
    template: ChatTemplate | None, limits: TemplateLimits = DEFAULT_LIMITS
) -> AsyncIterator["ProcessRenderer"]:
    """A renderer whose process, if it has one, ends with the block."""
    renderer = ProcessRenderer(template, limits)
    try:
        yield renderer
    finally:
        await renderer.end()


@attrs.define(eq=False)
class ProcessRenderer:
    """Implements `Renderer`. `end` has to be called."""

    _template: ChatTemplate | None
    _limits: TemplateLimits
    _process: trio.Process | None = attrs.field(init=False, default=None)

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        if self._process is None and self._template is not None:
            with contextlib.suppress(OSError):  # the first conversation tells
                await self._start()

    async def render(self, prompt: Prompt) -> str | TemplateFailed:
        """What is cancelled meanwhile is cancelled behind it: the next one finds the process at its beginning."""
        answer: str | TemplateFailed | None = None
        with trio.CancelScope(shield=True, deadline=trio.current_time() + EXCHANGE_S) as scope:
            try:
                answer = await self._exchange(prompt)
            except OSError as error:
                answer = TemplateFailed(message=f"its process cannot be started: {error}")
        if answer is not None:
            return answer
        return TemplateFailed(message=await self._why_ended(is_late=scope.cancelled_caught))

    async def end(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _KILLED_S):
                await process.wait()
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        await stream.aclose()

    async def _exchange(self, prompt: Prompt) -> str | TemplateFailed | None:
        """None: there will be no answer."""
        process = self._process or await self._start()
        try:
            await _send(process, conversation_frame(prompt, _needed(self._template).clock()))
            received = await _receive(process, ANSWER.size)
            kind, length = ANSWER.unpack_from(received)
            if length > self._limits.text_bytes:
                return None
            data = received[ANSWER.size :]
            if len(data) < length:
                data += await _receive(process, length - len(data))
            text = data.decode("utf-8", "surrogatepass")
        except (trio.BrokenResourceError, EOFError, UnicodeDecodeError):
            return None
        return text if kind == IS_TEXT else TemplateFailed(message=text)

    async def _start(self) -> trio.Process:
        """Raises OSError. It gets the search path of this interpreter, and nothing else of its environment."""
        process = self._process = await trio.lowlevel.open_process(
            (sys.executable, "-P", "-B", "-m", "layered_llm.service.workers.template_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        with contextlib.suppress(trio.BrokenResourceError):  # one that ended already is found by who wants its answer
            await _send(process, template_frame(_needed(self._template), self._limits))
        return process

    async def _why_ended(self, *, is_late: bool) -> str:
        process = self._process
        await self.end()
        code = None if process is None else process.returncode
        logger.warning("the process that renders chat templates was given up: %s", "no answer" if is_late else f"code {code}")
        if is_late:
            return f"it is not done within {EXCHANGE_S:g} s"
        if code == -TIME_SIGNAL:
            return f"it takes more than {self._limits.render_s:g} s of processor time, the most that a template may take"
        return (
            f"its process ended with code {code}; {self._limits.memory_bytes >> 20} MiB of memory are the most that it may take"
        )


def _needed(template: ChatTemplate | None) -> ChatTemplate:
    if template is None:
        raise InvariantViolated("a conversation is to be rendered without a template")
    return template


async def _send(process: trio.Process, data: bytes) -> None:
    if process.stdin is None:
        raise InvariantViolated("the process's input is a pipe")
    await process.stdin.send_all(data)


async def _receive(process: trio.Process, least_bytes: int) -> bytes:
    """At least so many, and no more than were sent. Raises EOFError."""
    if process.stdout is None:
        raise InvariantViolated("the process's output is a pipe")
    parts: list[bytes] = []
    while least_bytes > 0:
        part = bytes(await process.stdout.receive_some(_READ_BYTES))
        if not part:
            raise EOFError
        parts.append(part)
        least_bytes -= len(part)
    return b"".join(parts)
