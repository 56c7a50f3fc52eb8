"""The loop around the text core: moves messages between its three links, and long preparations into a thread.

Must not know: what a message means, processes, sockets.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import ApiId
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.api_text import (
    Abort,
    ApiToText,
    DescribeTokenizer,
    Detokenize,
    Submit,
    TextToApi,
    Tokenize,
)
from layered_llm.domain.messages.supervision import (
    ApiDied,
    EngineSized,
    EngineToSupervisor,
    Heartbeat,
    ProcessReady,
    Role,
    StateQuery,
    Stop,
    SupervisorToEngine,
)
from layered_llm.domain.messages.text_scheduler import SchedulerToText, TextToScheduler
from layered_llm.service.reports import text_report
from layered_llm.service.supervision import HEARTBEAT_INTERVAL_S, api_of_peer, api_peer_name
from layered_llm.text.core import Outcome, Outgoing, TextCore, Work
from layered_llm.transport.outbox import Outbox
from layered_llm.transport.ports import Garbled, MessageLink, PeerLink, SendOutcome

LONG_PREPARATIONS: Final = 2
"""At a time; more would take the cores from the runtime."""

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class TextLinks:
    """The three links of a text worker."""

    apis: PeerLink[TextToApi, ApiToText]
    scheduler: MessageLink[TextToScheduler, SchedulerToText]
    supervisor: MessageLink[EngineToSupervisor, SupervisorToEngine]


@attrs.define
class TextWorker:
    """One text worker. `run` lives until the supervisor says Stop."""

    _index: int
    _pid: int
    _links: TextLinks
    _to_scheduler: Outbox[TextToScheduler]
    _to_supervisor: Outbox[EngineToSupervisor]
    _prepare_long: "PrepareLong"
    """Runs a preparation that would stall every stream of this worker."""
    _preparing: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(LONG_PREPARATIONS))
    _owed: dict[ApiId, list[TextToApi]] = attrs.field(factory=dict)
    """The ends of requests that an API process lost by falling behind; it gets them as soon as it takes messages again."""

    async def run(self, make_core: Callable[[EngineLimits], TextCore]) -> None:
        """Works for the links. `make_core` is called once, when the engine's limits are known."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._to_scheduler.run, self._links.scheduler)
            nursery.start_soon(self._to_supervisor.run, self._links.supervisor)
            nursery.start_soon(self._beat)
            self._to_supervisor.emit(ProcessReady(role=Role.TEXT, index=self._index))
            core, early = await self._until_sized(make_core)
            nursery.start_soon(self._serve_apis, core)
            nursery.start_soon(self._serve_scheduler, core)
            await self._obey(core, early)
            nursery.cancel_scope.cancel(reason="told to stop")

    async def _until_sized(
        self, make_core: Callable[[EngineLimits], TextCore]
    ) -> tuple[TextCore, tuple[SupervisorToEngine, ...]]:
        """The core, and the orders that came behind the limits in the same batch."""
        while True:
            orders = await self._links.supervisor.receive()
            for place, order in enumerate(orders):
                if isinstance(order, EngineSized):
                    return make_core(order.limits), orders[place + 1 :]

    async def _obey(self, core: TextCore, orders: tuple[SupervisorToEngine, ...]) -> None:
        while True:
            for order in orders:
                match order:
                    case Stop():
                        return
                    case ApiDied(api=api):
                        self._owed.pop(api, None)
                        self._send(core, core.api_gone(api, AbortReason.PEER_DIED))
                    case StateQuery(query=query):
                        report = text_report(core.statistics(), core.check(), query=query, index=self._index, pid=self._pid)
                        self._to_supervisor.emit(report)
                    case EngineSized():
                        raise InvariantViolated("the limits of an engine are told once")
                    case _:
                        assert_never(order)
            orders = await self._links.supervisor.receive()

    async def _serve_apis(self, core: TextCore) -> None:
        async with trio.open_nursery() as preparations:
            while True:
                for peer, message in await self._links.apis.receive():
                    match message:
                        case Submit():
                            self._prepare(core, core.submit(message), preparations)
                        case Tokenize() | Detokenize() | DescribeTokenizer():
                            self._prepare(core, core.ask(message), preparations)
                        case Abort():
                            self._send(core, core.abort(message))
                        case Garbled(reason=reason):
                            logger.error("%s sent what is no message: %s", peer, reason)
                            self._give_up(core, peer)
                        case _:
                            assert_never(message)

    def _prepare(self, core: TextCore, work: Work, preparations: trio.Nursery) -> None:
        if work.is_long:
            preparations.start_soon(self._prepare_aside, core, work)
        else:
            self._send(core, core.prepared(work.request, work.run()))

    async def _prepare_aside(self, core: TextCore, work: Work) -> None:
        async with self._preparing:
            if not core.is_wanted(work.request):
                return
            outcome = await self._prepare_long(work)
        self._send(core, core.prepared(work.request, outcome))

    async def _serve_scheduler(self, core: TextCore) -> None:
        while True:
            for message in await self._links.scheduler.receive():
                self._send(core, core.from_scheduler(message))

    def _send(self, core: TextCore, outgoing: Outgoing) -> None:
        for order in outgoing.to_scheduler:
            self._to_scheduler.emit(order)
        for api, message in outgoing.to_api:
            if api in self._owed or not self._taken(api, message):
                self._owed.setdefault(api, []).append(message)
                self._fall_behind(core, api)

    def _give_up(self, core: TextCore, peer: str) -> None:
        """A peer that garbles cannot be served; one that is no API process has nothing open."""
        api = api_of_peer(peer)
        if api is not None:
            self._fall_behind(core, api)

    def _fall_behind(self, core: TextCore, api: ApiId) -> None:
        """Ends all requests of an API process that no longer takes what it is sent: nobody else waits for it."""
        ended = core.api_gone(api, AbortReason.SLOW_CONSUMER)
        for order in ended.to_scheduler:
            self._to_scheduler.emit(order)
        self._owed.setdefault(api, []).extend(message for _api, message in ended.to_api)

    def _pay_owed(self) -> None:
        for api, messages in list(self._owed.items()):
            while messages and self._taken(api, messages[0]):
                messages.pop(0)
            if not messages:
                del self._owed[api]

    def _taken(self, api: ApiId, message: TextToApi) -> bool:
        """An API process that is not connected any more has nothing open, or is about to be declared dead."""
        return self._links.apis.send_nowait(api_peer_name(api), message) is not SendOutcome.FULL

    async def _beat(self) -> None:
        while True:
            self._to_supervisor.emit(Heartbeat(role=Role.TEXT, index=self._index))
            self._pay_owed()
            await trio.sleep(HEARTBEAT_INTERVAL_S)


PrepareLong = Callable[[Work], Awaitable[Outcome]]


async def prepare_in_thread(work: Work) -> Outcome:
    """The tokenizer lets go of the interpreter while it works."""
    return await trio.to_thread.run_sync(work.run)
