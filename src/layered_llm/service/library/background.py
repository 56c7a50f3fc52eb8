"""An engine in a thread of its own, for callers without an event loop.

Must not know: prompts, completions, progress bars.

The thread ends with `close`, and by itself when the program's main thread does: a program that forgot to close it ends, and an
engine never outlives its program.
"""

import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

import attrs
import trio

from layered_llm.domain.ports.engine import EngineLost
from layered_llm.service.library.engine import Engine
from layered_llm.service.library.errors import EngineClosed, check_process

MAIN_THREAD_CHECK_S: Final = 0.2

T = TypeVar("T")
OpenEngine = Callable[[], contextlib.AbstractAsyncContextManager[Engine]]


@attrs.define(eq=False)
class _Job(Generic[T]):
    """One call: a future for the calling thread, a task for the engine's."""

    _work: Callable[[Engine], Awaitable[T]]
    outcome: "concurrent.futures.Future[T]" = attrs.field(factory=concurrent.futures.Future)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _is_started: bool = False

    def start(self, nursery: trio.Nursery, engine: Engine) -> None:
        """In an engine that ends already the job stays without an outcome: the thread's end gives it one."""
        if not nursery.cancel_scope.cancel_called:
            self._is_started = True
            nursery.start_soon(self._run, engine)

    def cancel(self) -> None:
        self._scope.cancel(reason="the caller no longer waits")
        if not self._is_started:
            self.outcome.cancel()

    async def _run(self, engine: Engine) -> None:
        with self._scope:
            try:
                result = await self._work(engine)
            except Exception as error:  # noqa: BLE001 - raised where the call was made
                self.outcome.set_exception(error)
            else:
                self.outcome.set_result(result)
        if self._scope.cancelled_caught:
            self.outcome.cancel()


@attrs.frozen
class _Running:
    """The engine, ready."""

    token: trio.lowlevel.TrioToken
    nursery: trio.Nursery
    engine: Engine


class EngineThread:
    """Owns the thread. Its methods may be called from any other thread."""

    def __init__(self, open_engine: OpenEngine) -> None:
        """Returns when the engine is ready. What opening it raises is raised here, with nothing left behind."""
        self._open_engine = open_engine
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a finalizer may run in the thread that holds it
        self._jobs: set[_Job[Any]] = set()
        self._stop: Callable[[], object] | None = None
        self._is_stop_asked = False
        self._end: Exception | None = None
        self._ready: concurrent.futures.Future[_Running] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="layered-llm-engine")
        self._thread.start()
        try:
            self._running = self._ready.result()
        except BaseException:
            self.close()
            raise

    @property
    def engine(self) -> Engine:
        self.check_process()
        return self._running.engine

    def check_process(self) -> None:
        """Raises EngineClosed in a process that was forked from the engine's, where the thread is not."""
        check_process(self._pid)

    def call(self, work: Callable[[Engine], Awaitable[T]]) -> T:
        """What `work` returns or raises.

        When the wait is interrupted (Ctrl-C), `work` is cancelled, and over before this raises. Raises EngineClosed after
        `close`, EngineLost when the engine itself failed.
        """
        self.check_process()
        job = _Job(work)
        try:
            self._start(job)
            return job.outcome.result()
        finally:
            if not job.outcome.done():
                self._cancel(job)
            # Not before: the thread's end gives an outcome to every job that it finds, and this one is waited for till here.
            with self._lock:
                self._jobs.discard(job)

    def request_stop(self) -> None:
        """The thread ends soon: what is open is ended, then the engine. Harmless when repeated, and in a forked process."""
        if os.getpid() != self._pid:
            return  # not even the lock can be trusted: a thread that is not here may have held it
        with self._lock:
            self._is_stop_asked = True
            if self._stop is not None:
                self._stop()

    def close(self) -> None:
        """`request_stop`, and waits for the end."""
        self.request_stop()
        if os.getpid() == self._pid:
            self._thread.join()

    def _start(self, job: _Job[Any]) -> None:
        with self._lock:
            if self._end is not None:
                raise self._end
            self._jobs.add(job)
            running = self._running
            self._in_thread(running.token, partial(job.start, running.nursery, running.engine))

    def _cancel(self, job: _Job[Any]) -> None:
        """The same queue as the start's, so it is never overtaken."""
        if not self._in_thread(self._running.token, job.cancel):
            return
        with contextlib.suppress(concurrent.futures.CancelledError):
            job.outcome.exception()

    @staticmethod
    def _in_thread(token: trio.lowlevel.TrioToken, function: Callable[[], None]) -> bool:
        """Whether there is still a loop to run it."""
        try:
            token.run_sync_soon(function)
        except trio.RunFinishedError:
            return False
        return True

    def _run(self) -> None:
        end: Exception = EngineClosed("the engine is used after it was closed")
        try:
            trio.run(self._live)
        except Exception as error:  # noqa: BLE001 - raised in the threads that use the engine
            end = error
        with self._lock:
            self._end = end if isinstance(end, EngineClosed) else _lost(end)
            self._stop = None
            for job in self._jobs:
                if not job.outcome.done():
                    job.outcome.set_exception(self._end)
        if not self._ready.done():
            self._ready.set_exception(end)

    async def _live(self) -> None:
        with trio.CancelScope() as scope:
            self._be_stoppable(scope)
            async with self._open_engine() as engine, trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_with_program, scope)
                self._ready.set_result(_Running(trio.lowlevel.current_trio_token(), nursery, engine))

    def _be_stoppable(self, scope: trio.CancelScope) -> None:
        token = trio.lowlevel.current_trio_token()
        with self._lock:
            self._stop = partial(self._in_thread, token, scope.cancel)
            if self._is_stop_asked:
                scope.cancel(reason="closed")


def _lost(error: Exception) -> EngineLost:
    lost = EngineLost(f"the engine failed: {error}")
    lost.__cause__ = error
    return lost


async def _cancel_with_program(scope: trio.CancelScope) -> None:
    """Nothing tells a thread that the interpreter waits for it to end; only the main thread's state does."""
    while threading.main_thread().is_alive():  # noqa: ASYNC110 - as said
        await trio.sleep(MAIN_THREAD_CHECK_S)
    scope.cancel(reason="the program is over")
