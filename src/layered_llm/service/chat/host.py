"""A thread with trio in it, in which the backend lives while the main thread waits for input, and how fast it answers.

Must not know: terminals, what a backend is made of.

The main thread has the terminal, since only it gets signals and only it may block in a read; the backend's tasks must go on
meanwhile. One answer runs at a time. Everything that the main thread calls here returns at once or can be interrupted.
"""

import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import attrs
import trio

from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.chat.backend import ChatBackend, Finished, Lost, Outcome, Piece


@attrs.define
class AnswerTimes:
    """Times of the pieces of one answer, as they come."""

    _begun_s: float
    _first_s: float | None = None
    _last_s: float = 0.0
    _first_tokens: int = 0
    tokens: int = 0

    def add(self, tokens: int, now_s: float) -> None:
        """A piece of so many tokens came."""
        if self._first_s is None:
            self._first_s, self._first_tokens = now_s, tokens
        self.tokens += tokens
        self._last_s = now_s

    def stats(self, tokens: int | None = None) -> "AnswerStats":
        """`tokens` is the true count, where it is known."""
        tokens = self.tokens if tokens is None else tokens
        if self._first_s is None:
            return AnswerStats(tokens=tokens, ttft_s=None, tokens_per_s=None)
        later_tokens, later_s = tokens - self._first_tokens, self._last_s - self._first_s
        rate = later_tokens / later_s if later_tokens > 0 and later_s > 0 else None
        return AnswerStats(tokens=tokens, ttft_s=self._first_s - self._begun_s, tokens_per_s=rate)


@attrs.frozen(kw_only=True)
class AnswerStats:
    """The figures of one answer."""

    tokens: int
    ttft_s: float | None
    """Time to first token: from the question to the first piece; None when none came."""
    tokens_per_s: float | None
    """Behind the first piece, so without queueing and prefill; None when nothing came behind it."""

    def line(self) -> str:
        parts = [f"{self.tokens} token{'' if self.tokens == 1 else 's'}"]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.ttft_s is not None:
            parts.append(f"TTFT {self.ttft_s * 1000:.0f} ms")
        return " · ".join(parts)


LEAVE_S: Final = 6.0
LEAVE_UNREADY_S: Final = 0.5
"""For the backend's end. A device that still loads its model cannot be stopped, so nobody waits for it."""
_GONE: Final = Lost("the backend failed")

OpenBackend = Callable[[], AbstractAsyncContextManager[ChatBackend]]


class BackendStuck(Exception):  # noqa: N818 - states what happened
    """The backend does not end, and its thread computes on. The process is to be left without the interpreter's clean-up,
    which may crash under such a thread."""


@attrs.frozen
class Stopped:
    """The user stopped the answer."""


@attrs.frozen
class Answered:
    """The last event of an answer."""

    outcome: Outcome | Stopped
    stats: AnswerStats


@attrs.frozen(eq=False)
class Answer:
    """One answer that is under way."""

    _messages: Sequence[ChatMessage]
    _params: SamplingParams
    _post: Callable[[Callable[[], object]], None]
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _events: "queue.SimpleQueue[Piece | Answered]" = attrs.field(factory=queue.SimpleQueue, init=False)

    def next_event(self) -> Piece | Answered:
        """Waits for it; nothing follows Answered."""
        return self._events.get()

    def stop(self) -> None:
        """Aborts it: Answered comes soon. May be called from a signal handler, and more than once."""
        self._post(self._scope.cancel)

    def give_up(self) -> None:
        """Nobody runs it any more: Answered comes, unless it has already."""
        self._events.put(Answered(_GONE, AnswerTimes(0.0).stats()))

    async def run(self, backend: ChatBackend) -> None:
        """In the backend's thread."""
        times = AnswerTimes(trio.current_time())
        outcome: Outcome | Stopped = _GONE

        def on_piece(piece: Piece) -> None:
            times.add(piece.tokens, trio.current_time())
            self._events.put(piece)

        try:
            with self._scope:
                outcome = await backend.answer(self._messages, self._params, on_piece)
            if self._scope.cancelled_caught:
                outcome = Stopped()
        finally:
            true_tokens = outcome.tokens if isinstance(outcome, Finished) else None
            self._events.put(Answered(outcome, times.stats(true_tokens)))


@contextlib.contextmanager
def open_host(open_backend: OpenBackend) -> "Iterator[BackendHost]":
    """A host whose backend is ready; leaving the block ends both.

    Raises what opening or running the backend raises, and BackendStuck.
    """
    host = BackendHost(open_backend)
    try:
        host.start()
        yield host
    finally:
        host.close()


class BackendHost:
    """The main thread's side of the backend's thread."""

    def __init__(self, open_backend: OpenBackend) -> None:
        self._open_backend = open_backend
        self._scope = trio.CancelScope()
        self._send, self._receive = trio.open_memory_channel[Answer](1)
        self._token: concurrent.futures.Future[trio.lowlevel.TrioToken] = concurrent.futures.Future()
        self._title: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._over: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._present: Answer | None = None
        self._thread = threading.Thread(target=self._run, name="chat-backend", daemon=True)

    @property
    def title(self) -> str:
        """The backend's."""
        return self._title.result()

    def start(self) -> None:
        """Waits until the backend is ready. Raises what keeps it from that."""
        self._thread.start()
        either: tuple[concurrent.futures.Future[Any], ...] = (self._title, self._over)
        concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
        if self._over.done():
            self._over.result()

    def ask(self, messages: Sequence[ChatMessage], params: SamplingParams) -> Answer:
        """Begins an answer; the one before it is over. Raises what the backend failed with."""
        answer = self._present = Answer(messages, params, self._post)
        if self._over.done():
            self._over.result()
        self._post(lambda: self._send.send_nowait(answer))
        return answer

    def close(self) -> None:
        """Ends the backend. Raises what it failed with, and BackendStuck."""
        if not self._thread.is_alive() and not self._over.done():
            return
        self._post(self._scope.cancel)
        try:
            self._over.result(LEAVE_S if self._title.done() else LEAVE_UNREADY_S)
        except TimeoutError:
            raise BackendStuck from None

    def _post(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.result().run_sync_soon(call)

    def _run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for it
            self._over.set_exception(error)
        else:
            self._over.set_result(None)
        # `ask` sets the answer before it looks whether this is over, and this is over before the answer is looked at here.
        if self._present is not None:
            self._present.give_up()

    async def _live(self) -> None:
        self._token.set_result(trio.lowlevel.current_trio_token())
        with self._scope:
            async with self._open_backend() as backend:
                self._title.set_result(backend.title)
                async for answer in self._receive:
                    await answer.run(backend)
