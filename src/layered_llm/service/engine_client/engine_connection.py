"""An API process's links to the engine: follows the supervisor, connects to each generation's text workers, says goodbye.

Must not know: HTTP, what a request says, who starts the supervisor.
"""

import contextlib
from typing import Final, assert_never

import attrs
import trio

from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import TextId
from layered_llm.domain.messages.api_text import ApiToText, TextToApi
from layered_llm.domain.messages.supervision import (
    AbortByName,
    ApiGoodbye,
    ApiHello,
    ApiToSupervisor,
    EnginePhase,
    EngineState,
    EngineStatus,
    FindRequest,
    Heartbeat,
    RequestFound,
    RequestsAborted,
    Role,
    StateQuery,
    Stop,
    SupervisorToApi,
)
from layered_llm.service.engine_client.engine_client import SLOTS_OF_A_REQUEST, EngineClient
from layered_llm.service.engine_client.request_stream import TextConnection
from layered_llm.service.processes.process_watch import WaitExit, wait_process_exit
from layered_llm.transport.link_specs import API_TEXT, Links
from layered_llm.transport.outbox import ENGINE_OUTBOX_MESSAGES, Outbox
from layered_llm.transport.peers import HEARTBEAT_INTERVAL_S, STALL_S, Liveness, api_peer_name
from layered_llm.transport.ports import MessageLink

LAST_ABORTS_S: Final = 1.0
LONG_WORK_S: Final = 0.001
"""Of messages that came together. Those of ordinary steps take less."""
LONGEST_REST_S: Final = 0.02
GOODBYE_S: Final = 6.0
"""Above what the supervisor takes in the worst case to end children that do not listen (`STOP_S`, `children._end`)."""

_LEFT: Final = EngineStatus(phase=EnginePhase.STOPPING, generation=0, supervisor_pid=0, detail="the server is stopping")
_LOST: Final = EngineStatus(
    phase=EnginePhase.RESTARTING, generation=0, supervisor_pid=0, detail="the supervisor is gone; waiting for another"
)

TextLink = MessageLink[ApiToText, TextToApi]


@attrs.define(eq=False)
class EngineConnection:
    """One stay at one supervisor."""

    _client: EngineClient
    _links: Links
    _max_open_requests: int
    _link: MessageLink[ApiToSupervisor, SupervisorToApi]
    _wait_exit: WaitExit = wait_process_exit
    _to_supervisor: Outbox[ApiToSupervisor] = attrs.field(factory=lambda: Outbox(ENGINE_OUTBOX_MESSAGES))
    _generations: dict[int, "_Generation"] = attrs.field(factory=dict)
    """By their numbers: the one that is ready, and those before it that still serve what they have."""
    _heard: trio.Event = attrs.field(factory=trio.Event)
    _released: trio.Event = attrs.field(factory=trio.Event)
    _heard_s: float = 0.0
    """When the supervisor said its last word."""
    _supervisor_pid: int = 0
    _is_unanswered: bool = False

    async def heard(self) -> None:
        """Waits for the supervisor's first word."""
        await self._heard.wait()

    @property
    def was_heard(self) -> bool:
        """The supervisor has said its first word."""
        return self._heard.is_set()

    def release(self) -> None:
        """The goodbye was taken; nothing is left to wait for."""
        self._released.set()

    @property
    def hung_supervisor_pid(self) -> int | None:
        """The supervisor, when it neither answered a goodbye nor ended; None while it has not said who it is."""
        return self._supervisor_pid if self._is_unanswered and self._heard.is_set() else None

    async def run(self, leave: trio.Event) -> None:
        """Follows the supervisor until it is gone, or until `leave` is set and the goodbye is said."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._to_supervisor.run, self._link)
            nursery.start_soon(self._obey, nursery)
            nursery.start_soon(self._end_with_supervisor, nursery.cancel_scope)
            nursery.start_soon(self._watch_supervisor)
            self._to_supervisor.emit(ApiHello(api=self._client.api, pid=self._client.pid))
            self._client.on_supervisor(self._to_supervisor)
            try:
                await leave.wait()
                await self._say_goodbye()
            finally:
                self._client.on_supervisor(None)
                self._client.on_supervisor_stall(is_stalled=False)
                self._client.on_status(_LEFT if leave.is_set() else _LOST, ())
            nursery.cancel_scope.cancel(reason="left the engine")

    async def _end_with_supervisor(self, scope: trio.CancelScope) -> None:
        await self._heard.wait()
        await self._wait_exit(self._supervisor_pid)
        self._is_unanswered = False
        scope.cancel(reason="the supervisor is gone")

    async def _watch_supervisor(self) -> None:
        """One that is stopped or hangs says nothing of it: its silence does."""
        await self._heard.wait()
        liveness = Liveness(now_s=trio.current_time())
        while True:
            await trio.sleep(HEARTBEAT_INTERVAL_S)
            liveness.seen(Role.SUPERVISOR, self._heard_s)
            silent_s = max(liveness.silent_s(trio.current_time()).values())
            self._client.on_supervisor_stall(is_stalled=silent_s > STALL_S)

    async def _obey(self, nursery: trio.Nursery) -> None:
        while True:
            for order in await self._link.receive():
                self._heard_s = trio.current_time()
                match order:
                    case Heartbeat():
                        pass
                    case EngineStatus():
                        self._follow(order, nursery)
                    case StateQuery(query=query):
                        self._to_supervisor.emit(self._client.report(query))
                    case AbortByName(query=query, request=request, tenant=tenant, names=names):
                        count = self._client.abort_here(request, tenant, names)
                        self._to_supervisor.emit(RequestsAborted(query=query, count=count))
                    case FindRequest(query=query, request=request, tenant=tenant, names=names):
                        fate = self._client.find_here(request, tenant, names)
                        self._to_supervisor.emit(RequestFound(query=query, fate=fate))
                    case EngineState() | RequestsAborted() | RequestFound():
                        self._client.on_answer(order)
                    case Stop():
                        self.release()
                    case _:
                        assert_never(order)

    def _follow(self, status: EngineStatus, nursery: trio.Nursery) -> None:
        """Connects to the text workers of a generation that is ready, and drops those of one that serves no more."""
        self._supervisor_pid = status.supervisor_pid
        self._heard.set()
        is_ready = status.phase is EnginePhase.READY
        serving = {*status.still_serving, status.generation} if is_ready else {*status.still_serving}
        for number in self._generations.keys() - serving:
            self._generations.pop(number).scope.cancel(reason=status.detail)
        if is_ready and status.generation not in self._generations:
            present = self._generations[status.generation] = self._connect(status)
            nursery.start_soon(present.run, self._client)
        self._client.on_status(status, self._connections)

    @property
    def _connections(self) -> tuple[TextConnection, ...]:
        return tuple(text for generation in self._generations.values() for text in generation.texts)

    def _connect(self, status: EngineStatus) -> "_Generation":
        name, capacity = api_peer_name(self._client.api), SLOTS_OF_A_REQUEST * self._max_open_requests
        with contextlib.ExitStack() as opened:
            links = tuple(
                opened.enter_context(self._links.connect(API_TEXT, address, name)) for address in status.text_addresses
            )
            texts = tuple(TextConnection(TextId(index), status.generation, Outbox(capacity)) for index in range(len(links)))
            return _Generation(texts, links, opened.pop_all())

    async def _say_goodbye(self) -> None:
        """Every open request is aborted first, and the aborts are out before the goodbye is."""
        self._client.close_all(AbortReason.SHUTDOWN)
        with trio.move_on_after(LAST_ABORTS_S):
            for text in self._connections:
                await text.outbox.flushed()
        self._to_supervisor.emit(ApiGoodbye(api=self._client.api))
        self._is_unanswered = True
        with trio.move_on_after(GOODBYE_S):
            await self._released.wait()
            self._is_unanswered = False


@attrs.define(eq=False)
class _Generation:
    """The links to one generation's text workers."""

    texts: tuple[TextConnection, ...]
    _links: tuple[TextLink, ...]
    _opened: contextlib.ExitStack
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def run(self, client: EngineClient) -> None:
        with self._opened, self.scope:
            async with trio.open_nursery() as nursery:
                for text, link in zip(self.texts, self._links, strict=True):
                    nursery.start_soon(text.outbox.run, link)
                    nursery.start_soon(_receive, client, link)


async def _receive(client: EngineClient, link: TextLink) -> None:
    while True:
        messages = await link.receive()
        began_s = trio.current_time()
        for message in messages:
            client.on_text(message)
        spent_s = trio.current_time() - began_s
        if spent_s > LONG_WORK_S:
            # Others need many rounds of the loop: half of the time is theirs. Who makes the messages is slower still.
            await trio.sleep(min(spent_s, LONGEST_REST_S))
