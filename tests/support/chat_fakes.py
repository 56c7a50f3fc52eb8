"""Both ends of a chat's shell: a user with a script, and a backend with one."""

import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Sequence

import attrs
import trio

from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.chat.backend import End, Finished, Outcome, Piece


@attrs.frozen
class CtrlC:
    """The user presses it."""


@attrs.frozen
class Silence:
    """Nothing more comes until somebody cancels."""


def piece(text: str) -> Piece:
    return Piece(text=text, tokens=1)


FINISHED = Finished(end=End.STOP, tokens=None)
Line = str | CtrlC
Item = Piece | Silence | Outcome | Exception


@attrs.define(eq=False)
class ScriptedUser:
    """Implements `Front`: types the lines, then Ctrl-D; presses Ctrl-C when it has read `stops_at`."""

    lines: list[Line]
    is_interactive: bool = True
    stops_at: str | None = None
    answers: str = ""
    asides: str = ""
    notes: list[str] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)
    continued: list[bool] = attrs.field(factory=list)

    def read_line(self, *, is_more: bool) -> str:
        self.continued.append(is_more)
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        if isinstance(line, CtrlC):
            signal.raise_signal(signal.SIGINT)
            return "the signal was not heard"
        return line

    def write(self, text: str, *, is_aside: bool = False) -> None:
        if is_aside:
            self.asides += text
        else:
            self.answers += text
        if text == self.stops_at:
            signal.raise_signal(signal.SIGINT)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def error(self, text: str) -> None:
        self.errors.append(text)


@attrs.define(eq=False)
class ScriptedBackend:
    """Implements `ChatBackend`: gives one script of pieces, silences and an outcome after the other."""

    scripts: list[list[Item]]
    asked: list[list[tuple[str, str | None]]] = attrs.field(factory=list)
    params: list[SamplingParams] = attrs.field(factory=list)
    cancelled: int = 0
    is_closed: bool = False
    title: str = "a script"

    @contextlib.asynccontextmanager
    async def open(self) -> "AsyncIterator[ScriptedBackend]":
        try:
            yield self
        finally:
            self.is_closed = True

    async def answer(
        self, messages: Sequence[ChatMessage], params: SamplingParams, on_piece: Callable[[Piece], None]
    ) -> Outcome:
        self.asked.append([(message.role, message.content) for message in messages])
        self.params.append(params)
        for item in self.scripts.pop(0):
            match item:
                case Piece():
                    on_piece(item)
                case Silence():
                    await self._wait()
                case Exception():
                    raise item
                case _:
                    return item
        return FINISHED

    async def _wait(self) -> None:
        try:
            await trio.Event().wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
