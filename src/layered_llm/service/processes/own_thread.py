"""Blocking work in a thread of its own, which a cancelled task does not wait for.

Must not know: what the work is.

trio's own threads are ended by the interpreter where they are, and a library that computes in one then crashes: so this one is
waited for by the interpreter. What it does should look now and then whether it is still wanted.
"""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Final, TypeVar

import attrs
import trio

LEAVING_S: Final = 0.2
"""How long a cancelled task waits for its thread to notice."""

T = TypeVar("T")


class NotWanted(Exception):  # noqa: N818 - states what happened
    """Raised in the thread: nobody waits for its result any more."""


@attrs.frozen(eq=False)
class Wanted:
    """Whether somebody still waits for the result."""

    _is_left: threading.Event = attrs.field(factory=threading.Event)

    def check(self) -> None:
        """Raises NotWanted."""
        if self._is_left.is_set():
            raise NotWanted

    def wait(self, time_s: float) -> None:
        """Lets some time pass. Raises NotWanted as soon as it is so."""
        self._is_left.wait(time_s)
        self.check()

    def leave(self) -> None:
        """Nobody does."""
        self._is_left.set()


async def run_in_own_thread(name: str, work: Callable[[Wanted], T]) -> T:
    """What `work` returns or raises. When cancelled it is left, and ends by itself."""
    wanted, is_over, future = Wanted(), trio.Event(), concurrent.futures.Future[T]()
    token = trio.lowlevel.current_trio_token()

    def run() -> None:
        try:
            result = work(wanted)
        except BaseException as error:  # noqa: BLE001 - raised in the task
            future.set_exception(error)
        else:
            future.set_result(result)
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(is_over.set)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    try:
        await is_over.wait()
    finally:
        wanted.leave()
        with trio.move_on_after(LEAVING_S, shield=True):
            await is_over.wait()
        if is_over.is_set():
            thread.join()
    return future.result()
