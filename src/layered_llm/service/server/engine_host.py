"""Keeps one supervisor running for a server, and one API process connected to it.

Must not know: HTTP, what the supervisor does.

All API processes of a server run this. The one that gets the lock of the server's directory starts the supervisor and hands
the lock on to it; the others, and this one from then on, only connect. When the supervisor is gone, the lock is free again.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
from typing import Final

import attrs
import trio

from layered_llm.domain.messages.supervision import EnginePhase, EngineStatus
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.engine_client.engine_connection import GOODBYE_S, LAST_ABORTS_S, EngineConnection
from layered_llm.service.processes.process_watch import wait_process_exit
from layered_llm.service.processes.run_directory import Owner, RunDirectory, RunDirectoryError
from layered_llm.service.settings.settings import Settings
from layered_llm.service.settings.settings_fields import printable
from layered_llm.service.supervisor.supervisor_process import SupervisorAhead, start_supervisor
from layered_llm.transport.addresses import LinkAddresses
from layered_llm.transport.link_specs import API_SUPERVISOR
from layered_llm.transport.links import ZmqLinks
from layered_llm.transport.peers import RESTART_WINDOW_S, api_peer_name
from layered_llm.transport.zmq_socket import open_context

MAX_SUPERVISORS: Final = 3
"""Supervisors that this process starts within a restart window before it gives up."""
FIRST_WORD_S: Final = 1.0
PAUSE_S: Final = 0.3
"""How long a lock that was held must stay free before another supervisor is started. hypercorn's workers hear that they are to
stop up to 0.1 s apart, and the first may take the engine along before the last has ever met it."""
LAST_LOOK_S: Final = 0.02
"""How often whoever leaves looks whether there is anybody to take leave of."""
HUNG_S: Final = 1.0
LEAVE_S: Final = LAST_ABORTS_S + GOODBYE_S + HUNG_S + 1.0

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class EngineHost:
    """An API process's hold on the engine."""

    _client: EngineClient
    _settings: Settings
    _owner: Owner
    _engine: str = ""
    """Tells the engines of one owner apart, as `RunDirectory.for_owner` takes it."""
    _ahead: SupervisorAhead | None = None
    """The first supervisor, where it was started already."""
    _starts_s: list[float] = attrs.field(factory=list)
    """When this process started a supervisor, as far as that still counts."""

    async def run(self) -> None:
        """Lives until it is cancelled; then aborts what is open, says goodbye, and, as the last, sees the engine end."""
        leave = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stay_until, leave)
                if self._owner.pid != os.getpid():
                    nursery.start_soon(self._die_with_owner)
                try:
                    await trio.Event().wait()
                finally:
                    leave.set()
        except Exception:
            # Whoever waits for the engine must not do so for ever.
            self._client.on_status(_failed("this process cannot keep an engine; its messages say why"), ())
            raise

    async def _stay_until(self, leave: trio.Event) -> None:
        """Cancelling this task would cut the goodbye: it is shielded, and from `leave` on the shield has a deadline."""
        with trio.CancelScope(shield=True) as shield:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_limit_after, leave, shield)
                await self._stay(leave)
                nursery.cancel_scope.cancel(reason="left the engine")

    async def _stay(self, leave: trio.Event) -> None:
        try:
            directory, address = self._meeting_place()
        except RunDirectoryError as error:
            logger.error("%s", error)  # noqa: TRY400 - the text says it all
            self._client.on_status(_failed(str(error)), ())
            await leave.wait()
            return
        with open_context() as context:
            while not leave.is_set() and self._may_start:
                await self._stay_at_one(ZmqLinks(context, context), directory, address, leave)
            if not leave.is_set():
                self._client.on_status(_failed("the supervisor does not stay alive; its messages say why"), ())
                await leave.wait()
        directory.remove_unless_locked()

    @property
    def _may_start(self) -> bool:
        """One that dies again and again is broken; one that dies once in a month is not."""
        since_s = trio.current_time() - RESTART_WINDOW_S
        self._starts_s = [start_s for start_s in self._starts_s if start_s > since_s]
        return len(self._starts_s) < MAX_SUPERVISORS

    def _meeting_place(self) -> tuple[RunDirectory, str]:
        """The server's directory, and the address in it where the supervisor is met. Raises RunDirectoryError."""
        directory = RunDirectory.for_owner(self._owner, self._engine)
        return directory, LinkAddresses.in_directory(directory.path, generation=0).supervisor_for_apis

    async def _stay_at_one(self, links: ZmqLinks, directory: RunDirectory, address: str, leave: trio.Event) -> None:
        with links.connect(API_SUPERVISOR, address, api_peer_name(self._client.api)) as link:
            connection = EngineConnection(self._client, links, self._settings.max_open_requests, link)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._see_to_supervisor, directory, connection, leave, nursery.cancel_scope)
                await connection.run(leave)
                if connection.hung_supervisor_pid is not None:
                    await _end_hung(connection.hung_supervisor_pid)
                nursery.cancel_scope.cancel(reason="the supervisor is gone, or left")

    async def _see_to_supervisor(
        self, directory: RunDirectory, connection: EngineConnection, leave: trio.Event, stay: trio.CancelScope
    ) -> None:
        """Starts a supervisor whenever there is none, until one says its first word, or none is wanted any more."""
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as waiting:
                nursery.start_soon(_cancel_when_heard, connection, waiting)
                ahead = None if self._ahead is None else self._ahead.take()
                if ahead is not None:
                    self._starts_s.append(trio.current_time())
                    nursery.start_soon(_see_out, ahead, connection, leave)
                    await _pass(FIRST_WORD_S, leave)
                while True:
                    lock = await self._next_lock(directory, leave)
                    if leave.is_set() or not self._may_start:
                        os.close(lock)
                        stay.cancel(reason="there is no supervisor, and none is to be started")
                    else:
                        self._starts_s.append(trio.current_time())
                        nursery.start_soon(_see_out, start_supervisor(directory, lock, self._settings), connection, leave)
                    await _pass(FIRST_WORD_S, leave)

    async def _next_lock(self, directory: RunDirectory, leave: trio.Event) -> int:
        """The lock, as soon as nobody has it. Raises RunDirectoryError."""
        was_held = False
        while True:
            lock = _try_lock(directory)
            if lock is not None and (leave.is_set() or not was_held):
                return lock
            was_held = lock is None
            if lock is not None:
                os.close(lock)
            await _pass(FIRST_WORD_S if was_held else PAUSE_S, leave)

    async def _die_with_owner(self) -> None:
        await wait_process_exit(self._owner.pid, start_time=self._owner.start_time)
        sys.stderr.write("the server's parent process is gone; leaving\n")
        os._exit(1)


def _try_lock(directory: RunDirectory) -> int | None:
    """As `RunDirectory.try_lock`, in a directory that is made again if it was removed. Raises RunDirectoryError."""
    while True:
        try:
            return directory.try_lock()
        except FileNotFoundError:
            directory.make()


async def _see_out(process: "subprocess.Popen[bytes]", connection: EngineConnection, leave: trio.Event) -> None:
    """Waits for a supervisor, which frees its entry in the process table; it does not depend on us.

    One that never said a word heard no goodbye either, and would keep the engine for as long as the owner lives.
    """
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_unborn, process, leave)
            await wait_process_exit(process.pid)
            nursery.cancel_scope.cancel(reason="it ended")
    finally:
        if not connection.was_heard:
            process.kill()
            with trio.move_on_after(HUNG_S, shield=True):
                await wait_process_exit(process.pid)
        process.poll()


async def _end_unborn(process: "subprocess.Popen[bytes]", leave: trio.Event) -> None:
    """A supervisor that has started nothing yet still obeys this signal; any other one ignores it, and hears the goodbye."""
    await leave.wait()
    process.terminate()


async def _pass(time_s: float, leave: trio.Event) -> None:
    """Some time, cut short when it is time to leave."""
    if leave.is_set():
        await trio.sleep(LAST_LOOK_S)
    with trio.move_on_after(time_s):
        await leave.wait()


async def _end_hung(supervisor_pid: int) -> None:
    """A supervisor that is stopped, or hangs, would keep the engine for ever; its children end with it."""
    logger.error("the supervisor does not answer; ending it")
    with contextlib.suppress(ProcessLookupError):
        os.kill(supervisor_pid, signal.SIGKILL)
    with trio.move_on_after(HUNG_S):
        await wait_process_exit(supervisor_pid)


async def _limit_after(leave: trio.Event, shield: trio.CancelScope) -> None:
    await leave.wait()
    shield.deadline = trio.current_time() + LEAVE_S


async def _cancel_when_heard(connection: EngineConnection, waiting: trio.CancelScope) -> None:
    await connection.heard()
    waiting.cancel(reason="the supervisor is there")


def _failed(detail: str) -> EngineStatus:
    return EngineStatus(phase=EnginePhase.FAILED, generation=0, supervisor_pid=0, detail=printable(detail))
