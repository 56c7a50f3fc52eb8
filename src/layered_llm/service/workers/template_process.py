"""The process that renders conversations: a template is a program of whoever published the checkpoint, and may not end.

Must not know: the model, keys, settings, the engine.

It is given a template, then conversations one by one, on standard input, and answers on standard output; it has no other file.
It takes memory and processor time within limits only: the system ends it where it wants more. It leaves when its input ends.

Frames begin with their length. What goes in are values that only `template_renderer` writes, so that marshal may read them.
What comes out is a kind and a text, and not trusted.
"""

import contextlib
import datetime as dt
import marshal
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

import attrs

from layered_llm.domain.messages.prompts import ChatMessage, Prompt, Rendering, ToolCall
from layered_llm.text.chat_template import ChatTemplate, TemplateFailed

FRAME: Final = struct.Struct("<Q")
ANSWER: Final = struct.Struct("<BQ")
IS_TEXT: Final = 0
IS_FAILURE: Final = 1
TIME_SIGNAL: Final = signal.SIGPROF
"""Ends the process whose time is over."""


@attrs.frozen(kw_only=True)
class TemplateLimits:
    """What a template may take."""

    memory_bytes: int = 512 << 20
    """Of address space, some 30 MiB of which the interpreter takes."""
    render_s: float = 1.0
    """Of processor time, for one conversation and for compiling the template."""
    text_bytes: int = 32 << 20
    """Of what it makes."""


def template_frame(template: ChatTemplate, limits: TemplateLimits) -> bytes:
    """What the process is given first."""
    return _framed((attrs.astuple(limits), template.source, template.variables))


def conversation_frame(prompt: Prompt, now: dt.datetime) -> bytes:
    """A conversation to render."""
    turns = [
        (
            turn.role,
            turn.content,
            turn.name,
            turn.reasoning,
            turn.tool_call_id,
            [attrs.astuple(call) for call in turn.tool_calls],
        )
        for turn in prompt.chat or ()
    ]
    rendering = prompt.rendering
    flags = (rendering.add_generation_prompt, rendering.continue_final_message)
    return _framed((now.isoformat(), *flags, rendering.variables, turns))


def _framed(value: Any) -> bytes:
    data = marshal.dumps(value)
    return FRAME.pack(len(data)) + data


@attrs.define
class _Moment:
    now: dt.datetime


def main() -> None:
    """The process's entry."""
    # Before the limits, which are the template's. Whoever starts this process needs nothing of it.
    import layered_llm.text.template_environment  # noqa: F401, PLC0415 - as said above

    source, sink = sys.stdin.buffer, sys.stdout.buffer
    moment = _Moment(dt.datetime.min)
    (memory_bytes, render_s, text_bytes), text, variables = _read(source)
    limits = TemplateLimits(memory_bytes=memory_bytes, render_s=render_s, text_bytes=text_bytes)
    _limit(limits)
    template = ChatTemplate(text, variables=variables, clock=lambda: moment.now)
    with _time_limit(limits):
        template.compile()
    while True:
        now, adds_prompt, continues, rendering_variables, turns = _read(source)
        moment.now = dt.datetime.fromisoformat(now)
        rendering = Rendering(
            add_generation_prompt=adds_prompt, continue_final_message=continues, variables=rendering_variables
        )
        with _time_limit(limits):
            answer = _rendered(template, turns, rendering, limits)
        sink.write(answer)
        sink.flush()


def _rendered(template: ChatTemplate, turns: Sequence[Any], rendering: Rendering, limits: TemplateLimits) -> bytes:
    messages = [
        ChatMessage(
            role=role,
            content=content,
            name=name,
            reasoning=reasoning,
            tool_calls=tuple(ToolCall(name=called, arguments=arguments, id=id_) for called, arguments, id_ in calls),
            tool_call_id=tool_call_id,
        )
        for role, content, name, reasoning, tool_call_id, calls in turns
    ]
    text = template.render(messages, rendering)
    try:
        kind, data = (IS_FAILURE, _bytes(text.message)) if isinstance(text, TemplateFailed) else (IS_TEXT, _bytes(text))
    except MemoryError:
        kind, data = IS_FAILURE, b"it needs too much memory"
    if len(data) > limits.text_bytes:
        kind, data = IS_FAILURE, f"it makes a text of {len(data)} bytes, and {limits.text_bytes} are the most".encode()
    return ANSWER.pack(kind, len(data)) + data


def _bytes(text: str) -> bytes:
    """A client's lone surrogates are refused later, in words of their own."""
    return text.encode("utf-8", "surrogatepass")


def _read(source: BinaryIO) -> Any:
    (length,) = FRAME.unpack(_exactly(source, FRAME.size))
    return marshal.loads(_exactly(source, length))  # noqa: S302 - of the process that started this one


def _exactly(source: BinaryIO, length: int) -> bytes:
    data = source.read(length)
    if len(data) < length:
        os._exit(0)
    return data


@contextlib.contextmanager
def _time_limit(limits: TemplateLimits) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, limits.render_s)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def _limit(limits: TemplateLimits) -> None:
    for what, most in ((resource.RLIMIT_AS, limits.memory_bytes), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        _soft, hard = resource.getrlimit(what)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS bounds no address space; there time alone is bounded
            resource.setrlimit(what, (limit, limit))


if __name__ == "__main__":
    main()
