"""The supervisor: owns every engine process in its nursery, and tells API processes where the engine stands.

Must not know: what a request says, which API process asks for what.

Started by the first API process of a server, but owned by nobody of them: it lives until the last of them has said goodbye,
or until the server's owner is gone, whatever else dies.
"""

import logging
import os
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, assert_never

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import ApiId
from layered_llm.domain.messages.supervision import (
    AbortByName,
    ApiGoodbye,
    ApiHello,
    ApiToSupervisor,
    EnginePhase,
    EngineToSupervisor,
    FindRequest,
    Heartbeat,
    ProcessReady,
    RequestFound,
    RequestsAborted,
    Role,
    StateQuery,
    StateReport,
    SupervisorToApi,
    SupervisorToEngine,
)
from layered_llm.service.model.checkpoint import Checkpoint, CheckpointError, is_on_hub, resolve
from layered_llm.service.model.fetching import fetch_from_hub
from layered_llm.service.processes.engine_process import engine_processes
from layered_llm.service.processes.process_watch import WaitExit, wait_process_exit
from layered_llm.service.processes.run_directory import RunDirectory
from layered_llm.service.settings.settings import Settings
from layered_llm.service.supervisor.launching import Launcher, ProcessLauncher
from layered_llm.service.supervisor.supervision import Outgoing, Supervision
from layered_llm.transport.addresses import LinkAddresses
from layered_llm.transport.link_specs import API_SUPERVISOR, ENGINE_SUPERVISOR, Links
from layered_llm.transport.links import ZmqLinks
from layered_llm.transport.peers import HEARTBEAT_INTERVAL_S, SILENCE_S, STALL_S, Liveness
from layered_llm.transport.ports import Garbled, PeerLink, SendOutcome
from layered_llm.transport.sparse_log import SparseLog
from layered_llm.transport.zmq_socket import open_context

STOP_S: Final = 1.0
"""How long engine processes have for their Stop before their input is closed."""
QUERY_CHECK_S: Final = 0.25

EngineLink = PeerLink[SupervisorToEngine, EngineToSupervisor]
ApiLink = PeerLink[SupervisorToApi, ApiToSupervisor]

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True)
class Supervisor:
    """Moves messages and processes; `Supervision` decides."""

    _processes: Sequence[tuple[Role, int]]
    """Of a generation, by role and index."""
    _addresses: Callable[[int], LinkAddresses]
    """Of a generation."""
    _links: Links
    _apis: ApiLink
    _supervision: Supervision
    _launcher: Launcher
    _find_checkpoint: Callable[[], Awaitable[Checkpoint]]
    """Raises CheckpointError."""
    _owner_gone: Callable[[], Awaitable[None]]
    """Returns when the server is to end without goodbyes."""
    _wait_exit: WaitExit = wait_process_exit
    _engine: EngineLink | None = None
    _warnings_of_strangers: SparseLog = attrs.field(factory=SparseLog)
    _stop: trio.Event = attrs.field(factory=trio.Event)
    _engine_is_over: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        """Lives until the last API process has said goodbye, or the owner is gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve_apis, nursery)
            nursery.start_soon(self._stop_with_owner)
            nursery.start_soon(self._expire_queries)
            nursery.start_soon(self._beat)
            nursery.start_soon(self._run_engine)
            await self._stop.wait()
            can_hear = self._supervision.phase is EnginePhase.READY
            self._send(self._supervision.stopping())
            if can_hear:  # who still loads does not, and holds nothing that it would have to let go
                with trio.move_on_after(STOP_S):
                    await self._engine_is_over.wait()
            nursery.cancel_scope.cancel(reason="the server is over")

    async def _stop_with_owner(self) -> None:
        await self._owner_gone()
        self._stop.set()

    async def _expire_queries(self) -> None:
        while True:
            await trio.sleep(QUERY_CHECK_S)
            self._send(self._supervision.expire_queries(trio.current_time()))

    async def _serve_apis(self, watches: trio.Nursery) -> None:
        while True:
            for peer, message in await self._apis.receive():
                if self._supervision.hears(peer, message):
                    self._obey(peer, message, watches)
                else:
                    self._log_dropped(peer, message)

    def _obey(self, peer: str, message: ApiToSupervisor | Garbled, watches: trio.Nursery) -> None:
        match message:
            case ApiHello():
                self._meet(message, watches)
            case ApiGoodbye(api=api):
                self._send(self._supervision.api_goodbye(api))
                if self._supervision.is_abandoned:
                    self._stop.set()
            case StateQuery() | AbortByName() | FindRequest():
                self._send(self._supervision.ask(peer, message, trio.current_time()))
            case StateReport() | RequestsAborted() | RequestFound():
                self._send(self._supervision.answered(peer, message))
            case Garbled():
                raise InvariantViolated("what is no message is not heard")
            case _:
                assert_never(message)

    def _meet(self, hello: ApiHello, watches: trio.Nursery) -> None:
        if not self._supervision.knows(hello.api):
            watches.start_soon(self._watch_api, hello)
        self._send(self._supervision.api_hello(hello))

    async def _watch_api(self, hello: ApiHello) -> None:
        await self._wait_exit(hello.pid)
        self._send(self._supervision.api_died(ApiId(hello.api)))

    async def _run_engine(self) -> None:
        self._send(self._supervision.note("looking for the model"))
        try:
            checkpoint = await self._find_checkpoint()
        except CheckpointError as error:
            self._send(self._supervision.start_failed(str(error)))
            self._engine_is_over.set()
            return
        while self._supervision.phase not in (EnginePhase.FAILED, EnginePhase.STOPPING):
            await self._run_generation(checkpoint)
        self._engine_is_over.set()

    async def _run_generation(self, checkpoint: Checkpoint) -> None:
        """Runs one set of engine processes until one of them ends, for whatever reason; none outlives the others."""
        generation = self._supervision.next_generation
        addresses = self._addresses(generation)
        with self._links.bind(ENGINE_SUPERVISOR, addresses.supervisor) as link:
            self._engine = link
            texts = tuple(addresses.text(index) for role, index in self._processes if role is Role.TEXT)
            self._send(self._supervision.generation_started(texts))
            ended, first_end = trio.open_memory_channel[str](1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve_engine, link, ended)
                for role, index in self._processes:
                    nursery.start_soon(self._run_process, role, index, generation, checkpoint, ended)
                reason = await first_end.receive()
                if not self._stop.is_set():
                    self._send(self._supervision.generation_died(reason, trio.current_time()))
                nursery.cancel_scope.cancel(reason=reason)
        self._engine = None
        addresses.remove_sockets()

    async def _run_process(
        self, role: Role, index: int, generation: int, checkpoint: Checkpoint, ended: trio.MemorySendChannel[str]
    ) -> None:
        await ended.send(await self._launcher.run(role, index, generation=generation, checkpoint=checkpoint))

    async def _serve_engine(self, link: EngineLink, ended: trio.MemorySendChannel[str]) -> None:
        liveness = Liveness(now_s=trio.current_time())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_silence, liveness, ended)
            while True:
                for peer, message in await link.receive():
                    if not self._supervision.hears(peer, message):
                        self._log_dropped(peer, message)
                        continue
                    liveness.seen(peer, trio.current_time())
                    match message:
                        case ProcessReady():
                            self._send(self._supervision.process_ready(message))
                        case StateReport():
                            self._send(self._supervision.answered(peer, message))
                        case Heartbeat():
                            pass
                        case Garbled():
                            raise InvariantViolated("what is no message is not heard")
                        case _:
                            assert_never(message)

    async def _watch_silence(self, liveness: Liveness, ended: trio.MemorySendChannel[str]) -> None:
        while True:
            await trio.sleep(HEARTBEAT_INTERVAL_S)
            silent = liveness.silent_s(trio.current_time()).items()
            for peer in (peer for peer, silent_s in silent if silent_s > SILENCE_S):
                await ended.send(f"{peer} hangs: it was silent for {SILENCE_S:g} s")
            stalled = (peer for peer, silent_s in silent if silent_s > STALL_S)
            self._send(self._supervision.stalled((*self._launcher.stopped(), *stalled)))

    async def _beat(self) -> None:
        while True:
            self._send(self._supervision.beat())
            await trio.sleep(HEARTBEAT_INTERVAL_S)

    def _send(self, outgoing: tuple[Outgoing, ...]) -> None:
        for peer, message in outgoing:
            outcome = self._send_one(peer, message)
            if outcome is not SendOutcome.SENT:
                logger.debug("%s is %s for %s", peer, outcome.value, type(message).__name__)

    def _send_one(self, peer: str, message: SupervisorToApi | SupervisorToEngine) -> SendOutcome:
        is_for_api = peer.startswith(Role.API.value)
        if is_for_api and isinstance(message, SupervisorToApi):
            return self._apis.send_nowait(peer, message)
        if is_for_api or not isinstance(message, SupervisorToEngine):
            raise InvariantViolated(f"{type(message).__name__} is no message for {peer}")
        return SendOutcome.UNREACHABLE if self._engine is None else self._engine.send_nowait(peer, message)

    def _log_dropped(self, peer: str, message: object) -> None:
        if self._warnings_of_strangers.is_due(trio.current_time()):
            what = f"what is no message: {message.reason}" if isinstance(message, Garbled) else f"a {type(message).__name__}"
            logger.warning("%s, which may not say that, sent %s", peer, what)


async def find_checkpoint(settings: Settings) -> Checkpoint:
    """In a thread, since disks may be slow. Raises CheckpointError."""
    model = settings.model
    fetched = await fetch_from_hub(model) if model is not None and is_on_hub(model) else None
    return await trio.to_thread.run_sync(resolve, model, fetched, abandon_on_cancel=True)


async def supervise(
    directory: RunDirectory, settings: Settings, ahead: "dict[tuple[str, ...], subprocess.Popen[bytes]]"
) -> None:
    """The supervisor's life. `ahead` are engine processes that were started already, by their commands."""
    owner = directory.owner

    def addresses(generation: int) -> LinkAddresses:
        return LinkAddresses.in_directory(directory.path, generation=generation)

    with open_context() as context:
        links = ZmqLinks(context, context)
        with links.bind(API_SUPERVISOR, addresses(0).supervisor_for_apis) as apis:
            await Supervisor(
                processes=engine_processes(settings.num_tokenizers, settings.tensor_parallel_size),
                addresses=addresses,
                links=links,
                apis=apis,
                supervision=Supervision(pid=os.getpid(), ranks=settings.tensor_parallel_size),
                launcher=ProcessLauncher(directory, ahead),
                find_checkpoint=partial(find_checkpoint, settings),
                owner_gone=partial(wait_process_exit, owner.pid, start_time=owner.start_time),
            ).run()
