"""The engine inside one program: the same cores, loops and messages as the server's, as trio tasks and one thread.

Must not know: HTTP, how a program starts trio.

Text worker and scheduler are tasks; the runtime is a thread that blocks for steps as its process would. The links are ZMQ over
inproc://, in a context of its own, so that two engines in one program do not know of each other. A part that fails ends the
engine, whose status says why: there is no process to restart.
"""

import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Final, assert_never

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.messages.scheduler_runtime import ANSWERING_RANK
from layered_llm.domain.messages.supervision import EnginePhase, Role
from layered_llm.runtime.device.device import Device, DeviceError
from layered_llm.runtime.opening import open_device
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.engine_client.engine_connection import EngineConnection
from layered_llm.service.model.checkpoint import Checkpoint
from layered_llm.service.processes.engine_process import all_leaves, engine_processes, leaves
from layered_llm.service.processes.own_thread import Wanted, run_in_own_thread
from layered_llm.service.processes.process_watch import WaitExit, wait_process_exit
from layered_llm.service.settings.settings import Settings
from layered_llm.service.supervisor.launching import Launcher
from layered_llm.service.supervisor.supervision import Supervision
from layered_llm.service.supervisor.supervisor_loop import ApiLink, Supervisor, find_checkpoint
from layered_llm.service.workers.runtime import monotonic_us, runtime_options
from layered_llm.service.workers.runtime_loop import serve_device
from layered_llm.service.workers.runtime_ranks import RuntimeFailed
from layered_llm.service.workers.schedule_trace import TraceFileError
from layered_llm.service.workers.scheduler import scheduling_policy, work_scheduler
from layered_llm.service.workers.scheduler_loop import StepOverdue
from layered_llm.service.workers.text import read_files, work_text
from layered_llm.text.checkpoint_text import UnreadableCheckpoint
from layered_llm.transport.addresses import LinkAddresses
from layered_llm.transport.link_specs import API_SUPERVISOR, SCHEDULER_RUNTIME, Links
from layered_llm.transport.links import ZmqLinks
from layered_llm.transport.peers import api_peer_name, peer_name
from layered_llm.transport.ports import LinkClosed
from layered_llm.transport.zmq_socket import MessageContext, open_context

LEAVE_S: Final = 5.0
_NAME: Final = "engine"


class EngineStartFailed(Exception):  # noqa: N818 - states what happened
    """The engine could not be started; one line that says why."""


@contextlib.contextmanager
def without_group() -> Iterator[None]:
    """Around a nursery: raises the one exception in the nursery's group instead of the group.

    Groups inside of that group are left: they are the block's own, or tell of several faults of the engine.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        (only,) = group.exceptions
        context = only.__context__
        try:
            raise only
        finally:
            only.__context__ = context


@attrs.define(eq=False)
class Start:
    """An engine's start, which is over when the engine is ready."""

    is_over: bool = False


@contextlib.contextmanager
def failing_starts() -> Iterator[Start]:
    """Around an engine's tasks: whatever fails before the start is over is raised as one EngineStartFailed.

    A part that fails takes others along, each with an exception of its own, and which of them comes first is chance.
    """
    start = Start()
    try:
        yield start
    except Exception as error:
        if start.is_over or isinstance(error, EngineStartFailed):
            raise
        raise _start_failure(error) from error
    except BaseExceptionGroup as group:
        named = [] if start.is_over else [each for each in all_leaves(group) if isinstance(each, EngineStartFailed)]
        if named and all(isinstance(each, Exception | trio.Cancelled) for each in all_leaves(group)):
            raise named[0] from group
        raise


def _start_failure(error: Exception) -> EngineStartFailed:
    found = all_leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    for each in found:
        if isinstance(each, EngineStartFailed):
            return each
    said = next(iter(str(found[0]).splitlines()), "")
    return EngineStartFailed(f"{type(found[0]).__name__}{': ' if said else ''}{said}")


@contextlib.asynccontextmanager
async def open_embedded_client(settings: Settings) -> AsyncIterator[EngineClient]:
    """A client of an engine that lives as long as the block, ready when the block begins.

    Leaving the block, in whatever way, aborts what is open and ends the engine. Raises EngineStartFailed, and what the block
    raises as it is, without the group of a nursery.
    """
    with open_context() as context, open_context() as runtime_context, failing_starts() as start, without_group():
        links = ZmqLinks(context, runtime_context)
        launcher = TaskLauncher(settings, links, runtime_context)
        find = partial(find_checkpoint, settings)
        async with EmbeddedEngine(settings, settings.tensor_parallel_size, links, launcher, find).open() as client:
            start.is_over = True
            yield client


@attrs.define(eq=False)
class EmbeddedEngine:
    """Supervisor, engine and client as tasks; the launcher decides what stands for the engine's processes."""

    _settings: Settings
    _ranks: int
    _links: Links
    _launcher: Launcher
    _find_checkpoint: Callable[[], Awaitable[Checkpoint]]
    _randbelow: Callable[[int], int] = secrets.randbelow
    """Draws the API's id, and the seed of each request that has none."""
    _wait_exit: WaitExit = wait_process_exit
    """Of API processes; there may be others than this program's own."""
    _leave: trio.Event = attrs.field(factory=trio.Event)
    _is_over: trio.Event = attrs.field(factory=trio.Event)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Around all tasks of the engine."""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[EngineClient]:
        """The client, ready. Leaving the block ends the engine in order, also when the block is cancelled.

        What cancels the block does not reach the engine before: whoever cleans up under a shield still has one.
        """
        async with trio.open_nursery() as nursery:
            client: EngineClient = await nursery.start(self._run)
            try:
                await until_ready(client)
                self._scope.shield = True
                yield client
            finally:
                self._leave.set()
                with trio.move_on_after(LEAVE_S, shield=True):
                    await self._is_over.wait()
                self._scope.cancel(reason="the engine is closed")

    async def _run(self, *, task_status: trio.TaskStatus[EngineClient]) -> None:
        try:
            with self._scope:
                await self._live(task_status)
        finally:
            self._is_over.set()

    async def _live(self, task_status: trio.TaskStatus[EngineClient]) -> None:
        client = EngineClient.drawn(
            pid=os.getpid(), max_open_requests=self._settings.max_open_requests, randbelow=self._randbelow
        )
        address = engine_addresses(0).supervisor_for_apis
        with (
            self._links.bind(API_SUPERVISOR, address) as apis,
            self._links.connect(API_SUPERVISOR, address, api_peer_name(client.api)) as link,
        ):
            connection = EngineConnection(client, self._links, self._settings.max_open_requests, link, self._wait_exit)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._supervise, apis, connection)
                nursery.start_soon(connection.run, self._leave)
                task_status.started(client)

    async def _supervise(self, apis: ApiLink, connection: EngineConnection) -> None:
        """In a server the end of the supervisor's process says that the engine is gone; here this does."""
        await Supervisor(
            processes=engine_processes(self._settings.num_tokenizers, self._ranks),
            addresses=engine_addresses,
            links=self._links,
            apis=apis,
            supervision=Supervision(pid=os.getpid(), ranks=self._ranks, max_restarts=0),
            launcher=self._launcher,
            find_checkpoint=self._find_checkpoint,
            owner_gone=trio.Event().wait,
            wait_exit=self._wait_exit,
        ).run()
        connection.release()


def engine_addresses(generation: int) -> LinkAddresses:
    """The names of the links; a context of its own keeps two engines apart."""
    return LinkAddresses.in_process(_NAME, generation=generation)


async def until_ready(client: EngineClient) -> None:
    """Raises EngineStartFailed when the engine will never be ready."""
    while True:
        status = client.status()
        if status.phase is EnginePhase.READY:
            return
        if status.phase is EnginePhase.FAILED:
            raise EngineStartFailed(status.detail)
        await client.status_change()


@attrs.frozen
class TaskLauncher:
    """Engine processes as tasks, and the runtime as a thread."""

    _settings: Settings
    _links: ZmqLinks
    _runtime_context: MessageContext
    """Of the link to the runtime alone: shut down to end the runtime's thread."""

    async def run(self, role: Role, index: int, *, generation: int, checkpoint: Checkpoint) -> str:
        reason = f"{role} left"
        try:
            await self._work(role, index, engine_addresses(generation), checkpoint)
        except* (UnreadableCheckpoint, DeviceError, TraceFileError, RuntimeFailed, StepOverdue) as group:
            reason = "; ".join(str(error) for error in leaves(group))
        return reason

    def stopped(self) -> tuple[str, ...]:
        return ()  # whoever stops one of them stops the program

    async def _work(self, role: Role, index: int, addresses: LinkAddresses, checkpoint: Checkpoint) -> None:
        match role:
            case Role.TEXT:
                files = await run_in_own_thread("layered-llm-text-files", lambda _: read_files(checkpoint.path, self._settings))
                await work_text(self._links, addresses, index, files)
            case Role.SCHEDULER:
                await work_scheduler(
                    self._links,
                    addresses,
                    scheduling_policy(self._settings),
                    text_workers=self._settings.num_tokenizers,
                    ranks=self._settings.tensor_parallel_size,
                    trace_file=self._settings.trace_file,
                )
            case Role.RUNTIME:
                await self._run_runtime(addresses, index, checkpoint)
            case Role.API | Role.SUPERVISOR:
                raise InvariantViolated(f"{role} is no engine process")
            case _:
                assert_never(role)

    async def _run_runtime(self, addresses: LinkAddresses, rank: int, checkpoint: Checkpoint) -> None:
        """A thread cannot be cancelled: the context is shut down under it, and it ends with its present step."""
        device = await run_in_own_thread("layered-llm-loading", partial(self._open_device, checkpoint))
        async with trio.open_nursery() as nursery:
            is_over = trio.Event()
            nursery.start_soon(self._shut_down_when_cancelled, is_over)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._block, addresses, rank, device)
            is_over.set()

    async def _shut_down_when_cancelled(self, is_over: trio.Event) -> None:
        """Not when the thread ended by itself: the scheduler reads from the same context, and would fail beside it."""
        try:
            await is_over.wait()
        finally:
            if not is_over.is_set():
                self._runtime_context.shutdown()

    def _open_device(self, checkpoint: Checkpoint, wanted: Wanted) -> Device:
        return open_device(runtime_options(self._settings, checkpoint.path), now_us=monotonic_us, check=wanted.check)

    def _block(self, addresses: LinkAddresses, rank: int, device: Device) -> None:
        name = peer_name(Role.RUNTIME, rank)
        with (
            contextlib.suppress(LinkClosed),
            self._links.connect_blocking(SCHEDULER_RUNTIME, addresses.runtime, name) as link,
        ):
            serve_device(device, link, pid=os.getpid(), answers=rank == ANSWERING_RANK)
