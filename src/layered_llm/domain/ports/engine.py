"""The engine as whoever opens requests sees it: the HTTP layer, the library, the chat.

Must not know: how an engine is reached, sockets, the codec. `service` implements these protocols.
"""

import contextlib
from collections.abc import Callable
from typing import Protocol

import attrs

from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import Accepted, Rejected, TextAnswer, TextQuestion
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import EngineState, EngineStatus, RequestFate
from layered_llm.domain.placement import ANYWHERE, Placement
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import Backlog, StreamEvent


@attrs.frozen(kw_only=True)
class RequestSummary:
    """What is known of a request so far."""

    prompt_tokens: int
    completion_tokens: int
    first_token_s: float | None
    """When its first token came, on trio's clock."""
    name: str | None
    """What its client calls it."""
    fate: RequestFate | None
    """None while it is open."""


class EngineStream(Protocol):
    """One open request. Closed by the owner that it was opened with; closing it before its end emits its abort."""

    @property
    def request(self) -> RequestId:
        """The request's id; public ids are made from it."""

    async def verdict(self) -> Accepted | Rejected:
        """Waits until the request is queued or rejected. Raises EngineLost when the engine dies before that."""

    async def receive(self) -> tuple[StreamEvent, ...]:
        """Waits for at least one event and returns what is queued, or a part of it where that is much; the deltas of one choice
        are merged into one.

        A cancelled call takes nothing: the events are returned by the next one. The last event of the last batch is
        RequestEnded; calling this after it, or before Accepted, is an error. Raises EngineLost when the engine dies, as
        BacklogFull when the request was ended since what nobody fetched had no room.
        """

    def bound(self, backlog: Backlog) -> None:
        """Ends the request when `backlog` has no room for what its reader does not fetch."""

    def summary(self) -> RequestSummary:
        """What is known of it by now; also when it is over."""

    def join(self, first: RequestId) -> None:
        """Makes the request a part of the body whose first one is `first`: `Engine.abort` of that ends this one too."""

    def call(self, name: str) -> None:
        """Gives the request a name of its client's, by which `Engine.abort` knows it too."""

    def close(self, reason: AbortReason) -> None:
        """Leaves the request: emits one Abort unless it has ended or was rejected. Synchronous, and harmless when repeated."""


class EngineQuestion(Protocol):
    """One open question. Closed by the owner that it was asked with; closing it before its answer emits its abort."""

    async def answer(self) -> TextAnswer | Rejected:
        """Waits for the answer, which is of the question's kind. Raises EngineLost when the engine dies before that."""

    def close(self, reason: AbortReason) -> None:
        """Leaves the question. Synchronous, and harmless when repeated."""


class EngineLost(Exception):  # noqa: N818 - states what happened
    """The engine, or the part of it that had the request, is gone; nothing more comes of it."""


class RequestAborted(EngineLost):
    """The engine goes on; the request was ended by its id (`Engine.abort`)."""


class BacklogFull(EngineLost):
    """The engine goes on; the request was ended since its reader took too little of what came."""


class Engine(Protocol):
    """An engine client."""

    def status(self) -> EngineStatus:
        """The phase of the engine now, and what it says of it."""

    def open(
        self, owner: contextlib.ExitStack, prompt: Prompt, params: SamplingParams, placement: Placement = ANYWHERE
    ) -> EngineStream | Rejected:
        """Submits a request that lives no longer than `owner`.

        Synchronous, so that no cancellation can come between submit and ownership. Rejected (QUEUE_FULL) at once when this
        process holds too many open requests. Call it only while the phase is READY. `owner` may be closed, and then exited,
        more than once; it closes the stream as CLIENT_GONE.
        """

    def ask(
        self, owner: contextlib.ExitStack, question: Callable[[RequestId], TextQuestion], tenant: str = ""
    ) -> EngineQuestion | Rejected:
        """Asks a text worker the question that `question` makes of its id; as `open` in everything else."""

    async def abort(self, request: RequestId | None, tenant: str | None = "", names: tuple[str, ...] = ()) -> int:
        """Ends the body whose first request is `request` and what is called by one of `names`, whichever process has it.

        With neither it ends all. Returns how many were open. Only what the tenant opened counts, with None what anybody did;
        another one's request is as one that is not open. Their readers hear RequestAborted. Raises EngineLost when it cannot be
        known whether the request is open.
        """

    async def find(self, request: RequestId | None, tenant: str | None = "", names: tuple[str, ...] = ()) -> RequestFate | None:
        """What became of the body that `abort` would end, or would have ended, as long as anybody remembers; else None.

        Raises EngineLost when it cannot be known.
        """

    async def state(self, *, flush_cache: bool = False) -> EngineState:
        """The state of every process, for `/metrics` and `/debug/state`; never enters the engine's queues.

        With `flush_cache` the pages that only the prefix cache holds are freed first.

        Bounded in time: a process that does not answer is named in `silent`; with no supervisor only this process reports.
        """
