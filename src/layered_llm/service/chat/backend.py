"""Where answers come from, as the shell sees it.

Must not know: terminals, threads, how a backend reaches its model.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.domain.sampling import SamplingParams


@attrs.frozen(kw_only=True)
class Piece:
    """The next part of an answer. `tokens` stand behind it, counted as well as the backend can."""

    text: str
    reasoning: str = ""
    """What the model thinks before it answers, where a server keeps it apart; no part of the conversation."""
    tokens: int


@enum.unique
class End(enum.Enum):
    """Why a finished answer ends where it does."""

    STOP = enum.auto()
    LENGTH = enum.auto()
    """At `max_tokens`, or at a limit of the server's."""
    CONTEXT = enum.auto()
    """Conversation and answer fill the context."""


@attrs.frozen(kw_only=True)
class Finished:
    """The model came to an end. `tokens` is the true count, None where the backend does not tell it."""

    end: End
    tokens: int | None


@attrs.frozen
class ContextFull:
    """There is no room for an answer; the message has the numbers."""

    message: str


@attrs.frozen
class Failed:
    """No answer, or only a part of one, this time."""

    message: str


@attrs.frozen
class Lost:
    """The backend is gone for good."""

    message: str


Outcome = Finished | ContextFull | Failed | Lost


class CannotOpen(Exception):  # noqa: N818 - states what happened
    """There is no backend; one line that says why."""


class ChatBackend(Protocol):
    """Answers one request at a time, under trio."""

    @property
    def title(self) -> str:
        """Model and place, for people."""

    async def answer(
        self, messages: Sequence[ChatMessage], params: SamplingParams, on_piece: Callable[[Piece], None]
    ) -> Outcome:
        """Gives the answer to `on_piece` as it comes; decides what `params` leave open. A cancellation aborts the request."""
