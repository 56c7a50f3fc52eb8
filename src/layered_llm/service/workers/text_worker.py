"""The loop around the text core: moves messages between its three links, the preparations and what is deferred.

Must not know: what a message means, processes, sockets.
"""

import logging
from collections.abc import Callable
from typing import assert_never

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import ApiId, RequestId
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
    AbortTally,
    ApiDied,
    EngineSized,
    EngineToSupervisor,
    Heartbeat,
    ProcessReady,
    Role,
    StateQuery,
    StateReport,
    Stop,
    SupervisorToEngine,
)
from layered_llm.domain.messages.text_scheduler import SchedulerToText, TextToScheduler
from layered_llm.domain.metrics import metrics_of
from layered_llm.service.workers.preparations import Preparations, TextHelpers
from layered_llm.text.core import Outcome, Outgoing, TextCore
from layered_llm.text.text_statistics import TextStatistics
from layered_llm.transport.outbox import DeferredSends, Outbox
from layered_llm.transport.peers import HEARTBEAT_INTERVAL_S, api_of_peer, api_peer_name
from layered_llm.transport.ports import Garbled, MessageLink, PeerLink, SendOutcome
from layered_llm.transport.sparse_log import SparseLog

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
    _helpers: TextHelpers
    _core: TextCore = attrs.field(init=False)
    """Made when the engine's limits are known."""
    _preparations: Preparations = attrs.field(init=False)
    _deferred: DeferredSends[ApiId, TextToApi] = attrs.field(init=False)
    """The ends of requests that an API process lost by falling behind; it gets them as soon as it takes messages again."""
    _errors_of_peers: SparseLog = attrs.field(factory=SparseLog)

    async def run(self, make_core: Callable[[EngineLimits], TextCore]) -> None:
        """Works for the links. `make_core` is called once, when the engine's limits are known."""
        self._deferred = DeferredSends(self._taken)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._to_scheduler.run, self._links.scheduler)
            nursery.start_soon(self._to_supervisor.run, self._links.supervisor)
            nursery.start_soon(self._beat)
            self._to_supervisor.emit(ProcessReady(role=Role.TEXT, index=self._index))
            limits, early = await self._until_sized()
            core = self._core = make_core(limits)
            self._preparations = Preparations(helpers=self._helpers, is_wanted=core.is_wanted, done=self._prepared)
            nursery.start_soon(self._serve_apis)
            nursery.start_soon(self._serve_scheduler)
            nursery.start_soon(self._preparations.start_renderer)
            await self._obey(early)
            nursery.cancel_scope.cancel(reason="told to stop")

    async def _until_sized(self) -> tuple[EngineLimits, tuple[SupervisorToEngine, ...]]:
        """The limits, and the orders that came after them in the same batch."""
        while True:
            orders = await self._links.supervisor.receive()
            for place, order in enumerate(orders):
                if isinstance(order, EngineSized):
                    return order.limits, orders[place + 1 :]

    async def _obey(self, orders: tuple[SupervisorToEngine, ...]) -> None:
        core = self._core
        while True:
            for order in orders:
                match order:
                    case Stop():
                        return
                    case ApiDied(api=api):
                        self._deferred.drop(api)
                        self._send(core.api_gone(api, AbortReason.PEER_DIED))
                        self._preparations.leave_unwanted()
                    case StateQuery(query=query):
                        report = _report(core.statistics(), core.check(), query=query, index=self._index, pid=self._pid)
                        self._to_supervisor.emit(report)
                    case EngineSized():
                        raise InvariantViolated("the limits of an engine are told once")
                    case _:
                        assert_never(order)
            orders = await self._links.supervisor.receive()

    async def _serve_apis(self) -> None:
        core, preparations = self._core, self._preparations
        async with trio.open_nursery() as nursery:
            while True:
                spent_chars = 0
                for peer, message in await self._links.apis.receive():
                    match message:
                        case Submit():
                            spent_chars += preparations.begin(core.submit(message), spent_chars, nursery)
                        case Tokenize() | Detokenize() | DescribeTokenizer():
                            spent_chars += preparations.begin(core.ask(message), spent_chars, nursery)
                        case Abort():
                            self._send(core.abort(message))
                            preparations.leave(message.request, message.incarnation)
                        case Garbled(reason=reason):
                            if self._errors_of_peers.is_due(trio.current_time()):
                                logger.error("%s sent what is no message: %s", peer, reason)
                            self._give_up(peer)
                        case _:
                            assert_never(message)

    def _prepared(self, request: RequestId, outcome: Outcome) -> None:
        self._send(self._core.prepared(request, outcome))

    async def _serve_scheduler(self) -> None:
        while True:
            for place, message in enumerate(await self._links.scheduler.receive()):
                if place:
                    await trio.lowlevel.checkpoint()  # each is the text of a whole step
                self._send(self._core.from_scheduler(message))

    def _send(self, outgoing: Outgoing) -> None:
        for order in outgoing.to_scheduler:
            self._to_scheduler.emit(order)
        for api, message in outgoing.to_api:
            if not self._deferred.send(api, message):
                self._fall_behind(api)

    def _give_up(self, peer: str) -> None:
        """A peer that garbles cannot be served; one that is no API process has nothing open."""
        api = api_of_peer(peer)
        if api is not None:
            self._fall_behind(api)

    def _fall_behind(self, api: ApiId) -> None:
        """Ends all requests of an API process that no longer takes what it is sent: nobody else waits for it."""
        ended = self._core.api_gone(api, AbortReason.SLOW_CONSUMER)
        for order in ended.to_scheduler:
            self._to_scheduler.emit(order)
        self._deferred.defer(api, (message for _api, message in ended.to_api))
        self._preparations.leave_unwanted()

    def _taken(self, api: ApiId, message: TextToApi) -> bool:
        """An API process that is not connected any more has nothing open, or is about to be declared dead."""
        return self._links.apis.send_nowait(api_peer_name(api), message) is not SendOutcome.FULL

    async def _beat(self) -> None:
        while True:
            self._to_supervisor.emit(Heartbeat(role=Role.TEXT, index=self._index))
            self._deferred.retry()
            await trio.sleep(HEARTBEAT_INTERVAL_S)


def _report(statistics: TextStatistics, violations: tuple[str, ...], *, query: int, index: int, pid: int) -> StateReport:
    counters = statistics.counters
    return StateReport(
        query=query,
        role=Role.TEXT,
        index=index,
        pid=pid,
        open_requests=statistics.open_requests,
        maps=statistics.maps,
        metrics=(*metrics_of(statistics), *metrics_of(counters)),
        violations=violations,
        aborts_sent=(AbortTally(peer=Role.SCHEDULER, index=0, aborts=counters.aborts_forwarded + counters.aborts_own),),
        aborts_taken=tuple(
            AbortTally(peer=Role.API, index=api, aborts=aborts) for api, aborts in sorted(counters.aborts_taken.items())
        ),
    )
