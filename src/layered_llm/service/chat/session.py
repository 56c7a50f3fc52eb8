"""A chat as state: what was said, what the next request holds, and what a line of input means.

Must not know: terminals, threads, engines, clocks.
"""

from typing import Final

import attrs

from layered_llm.domain.messages.prompts import ChatMessage

HELP: Final = """\
/system TEXT   replace the system prompt from the next answer on; without TEXT there is none
/reset         forget the conversation, but not the system prompt
/exit          leave (also /quit, Ctrl-D)
/help          show this
//TEXT         say /TEXT
A line that ends in \\ goes on in the next one. Ctrl-C stops an answer, which stays in the conversation as far as it came;
at the prompt it clears the line."""


@attrs.frozen
class Say:
    """The model is to answer this."""

    text: str


@attrs.frozen
class SetSystem:
    """None: no system prompt."""

    text: str | None


@attrs.frozen
class Reset:
    """Forget what was said."""


@attrs.frozen
class Leave:
    """End the chat."""


@attrs.frozen
class ShowHelp:
    """Say which commands there are."""


@attrs.frozen
class UnknownCommand:
    """Looks like a command, and is none."""

    name: str


Input = Say | SetSystem | Reset | Leave | ShowHelp | UnknownCommand


def read_input(text: str) -> Input | None:
    """What a whole input means; None for a blank one."""
    stripped = text.strip()
    if not stripped:
        return None
    if stripped.startswith("//"):
        return Say(stripped[1:])
    return _read_command(stripped) if stripped.startswith("/") else Say(text)


def _read_command(text: str) -> Input:
    name, _, rest = text.partition(" ")
    match name:
        case "/system":
            return SetSystem(rest.strip() or None)
        case "/reset":
            return Reset()
        case "/exit" | "/quit":
            return Leave()
        case "/help":
            return ShowHelp()
        case _:
            return UnknownCommand(name)


@attrs.define
class LineJoiner:
    """Lines that end in a backslash, and the line that follows them, as one input."""

    _lines: list[str] = attrs.field(factory=list)

    @property
    def is_open(self) -> bool:
        """The next line goes on with what is here already."""
        return bool(self._lines)

    def add(self, line: str) -> str | None:
        """The whole input, when `line` is its last."""
        if line.endswith("\\"):
            self._lines.append(line[:-1])
            return None
        return "\n".join((*self.clear(), line))

    def clear(self) -> tuple[str, ...]:
        """Drops, and gives, what is here."""
        lines, self._lines = tuple(self._lines), []
        return lines


@attrs.define
class Conversation:
    """What is kept of a chat. A question gets into it together with its answer, so that the roles always alternate."""

    _system: str | None = None
    _turns: list[ChatMessage] = attrs.field(factory=list, init=False)

    def messages_for(self, question: str) -> tuple[ChatMessage, ...]:
        """The request that asks `question`."""
        system = () if self._system is None else (ChatMessage(role="system", content=self._system),)
        return (*system, *self._turns, ChatMessage(role="user", content=question))

    def keep(self, question: str, answer: str) -> None:
        self._turns += [ChatMessage(role="user", content=question), ChatMessage(role="assistant", content=answer)]

    def reset(self) -> None:
        self._turns.clear()

    def set_system(self, text: str | None) -> None:
        self._system = text
