"""The loop around the text core: moves messages between its three links, and long preparations into threads.

Must not know: what a message means, processes, sockets.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

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
from layered_llm.service.deferred_sends import DeferredSends
from layered_llm.service.fair_places import FairPlaces, Place
from layered_llm.service.reports import text_report
from layered_llm.service.template_renderer import Renderer
from layered_llm.text.core import Outcome, Outgoing, TextCore, Work
from layered_llm.text.preparation import LONG_WORK_CHARS
from layered_llm.transport.outbox import Outbox
from layered_llm.transport.peers import HEARTBEAT_INTERVAL_S, api_of_peer, api_peer_name
from layered_llm.transport.ports import Garbled, MessageLink, PeerLink, SendOutcome
from layered_llm.transport.sparse_log import SparseLog

HUGE_WORK_CHARS: Final = 64_000
"""Some 30 ms of tokenizing, 150 ms of the dearest text. What costs more waits for its like only, and delays nothing shorter."""
_SHORT_WORK_CHARS: Final = 200
"""Taking a message and sending on what came of it, as so many characters to tokenize."""
_START_RENDERER_S: Final = 0.5
"""After the engine is ready, whose start has the processors until then."""

_GONE: Final = "the request is gone"

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class TextLinks:
    """The three links of a text worker."""

    apis: PeerLink[TextToApi, ApiToText]
    scheduler: MessageLink[TextToScheduler, SchedulerToText]
    supervisor: MessageLink[EngineToSupervisor, SupervisorToEngine]


@attrs.frozen(kw_only=True)
class TextHelpers:
    """Who does what would hold up every stream of a worker, or what might not end."""

    prepare_long: "PrepareLong"
    renderer: Renderer


@attrs.define
class TextWorker:
    """One text worker. `run` lives until the supervisor says Stop."""

    _index: int
    _pid: int
    _links: TextLinks
    _to_scheduler: Outbox[TextToScheduler]
    _to_supervisor: Outbox[EngineToSupervisor]
    _helpers: TextHelpers
    _rendering: FairPlaces = attrs.field(factory=lambda: FairPlaces(1))
    _short: FairPlaces = attrs.field(factory=lambda: FairPlaces(1))
    """For what is done on the loop, when more came at once than it may do between two checkpoints."""
    _long: FairPlaces = attrs.field(factory=lambda: FairPlaces(1))
    _huge: FairPlaces = attrs.field(factory=lambda: FairPlaces(1))
    """Both in threads; more of them would take the cores from the runtime."""
    _aside: dict[RequestId, trio.CancelScope] = attrs.field(factory=dict)
    """Around the work that waits for a place or has one."""
    _deferred: DeferredSends = attrs.field(init=False)
    """The ends of requests that an API process lost by falling behind; it gets them as soon as it takes messages again."""
    _errors_of_peers: SparseLog = attrs.field(factory=SparseLog)

    def __attrs_post_init__(self) -> None:
        self._deferred = DeferredSends(self._taken)

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
            nursery.start_soon(self._start_renderer)
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
                        self._deferred.drop(api)
                        self._send(core, core.api_gone(api, AbortReason.PEER_DIED))
                        self._leave_unwanted(core)
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
                spent_chars = 0
                for peer, message in await self._links.apis.receive():
                    match message:
                        case Submit():
                            spent_chars += self._begin(core, core.submit(message), spent_chars, preparations)
                        case Tokenize() | Detokenize() | DescribeTokenizer():
                            spent_chars += self._begin(core, core.ask(message), spent_chars, preparations)
                        case Abort():
                            self._send(core, core.abort(message))
                            self._leave(message.request)
                        case Garbled(reason=reason):
                            if self._errors_of_peers.is_due(trio.current_time()):
                                logger.error("%s sent what is no message: %s", peer, reason)
                            self._give_up(core, peer)
                        case _:
                            assert_never(message)

    def _begin(self, core: TextCore, work: Work, spent_chars: int, preparations: trio.Nursery) -> int:
        """Does short work at once, unless others wait or `spent_chars` of work were done since the last checkpoint.

        Returns what it cost. All else is done by turns between tenants.
        """
        if not core.is_wanted(work.request):
            return 0
        cost_chars = _SHORT_WORK_CHARS + work.cost_chars
        if (
            work.conversation is not None
            or cost_chars + spent_chars > _SHORT_WORK_CHARS + LONG_WORK_CHARS
            or self._short.has_waiting
        ):
            place = self._place(work)  # here, so that what comes first is first among its tenant's
            preparations.start_soon(self._work_aside, core, work, place)
            return 0
        self._send(core, core.prepared(work.request, work.run()))
        return cost_chars

    async def _work_aside(self, core: TextCore, work: Work, place: Place) -> None:
        with trio.CancelScope() as scope:
            if not core.is_wanted(work.request):
                scope.cancel(reason=_GONE)
            self._aside[work.request] = scope
            try:
                outcome = await self._in_turn(work, place)
            finally:
                del self._aside[work.request]
            self._send(core, core.prepared(work.request, outcome))

    async def _in_turn(self, work: Work, place: Place) -> Outcome:
        conversation = work.conversation
        if conversation is not None:
            async with place:
                work = work.with_rendered(await self._helpers.renderer.render(conversation))
            place = self._place(work)
        async with place:
            return await self._helpers.prepare_long(work) if work.cost_chars > LONG_WORK_CHARS else work.run()

    def _place(self, work: Work) -> Place:
        """Where its next part is done. What a template costs is not known before, but bounded."""
        if work.conversation is not None:
            return self._rendering.enter(work.tenant, 1)
        cost_chars = work.cost_chars
        if cost_chars > LONG_WORK_CHARS:
            return (self._long if cost_chars <= HUGE_WORK_CHARS else self._huge).enter(work.tenant, cost_chars)
        return self._short.enter(work.tenant, _SHORT_WORK_CHARS + cost_chars)

    async def _start_renderer(self) -> None:
        await trio.sleep(_START_RENDERER_S)
        async with self._rendering.enter("", 1):
            await self._helpers.renderer.start()

    def _leave(self, request: RequestId) -> None:
        """Nobody waits for it any more: it gives up its turn, or its place when what runs in a thread is done."""
        scope = self._aside.get(request)
        if scope is not None:
            scope.cancel(reason=_GONE)

    def _leave_unwanted(self, core: TextCore) -> None:
        for request in [request for request in self._aside if not core.is_wanted(request)]:
            self._leave(request)

    async def _serve_scheduler(self, core: TextCore) -> None:
        while True:
            for place, message in enumerate(await self._links.scheduler.receive()):
                if place:
                    await trio.lowlevel.checkpoint()  # each is the text of a whole step
                self._send(core, core.from_scheduler(message))

    def _send(self, core: TextCore, outgoing: Outgoing) -> None:
        for order in outgoing.to_scheduler:
            self._to_scheduler.emit(order)
        for api, message in outgoing.to_api:
            if not self._deferred.send(api, message):
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
        self._deferred.defer(api, (message for _api, message in ended.to_api))
        self._leave_unwanted(core)

    def _taken(self, api: ApiId, message: TextToApi) -> bool:
        """An API process that is not connected any more has nothing open, or is about to be declared dead."""
        return self._links.apis.send_nowait(api_peer_name(api), message) is not SendOutcome.FULL

    async def _beat(self) -> None:
        while True:
            self._to_supervisor.emit(Heartbeat(role=Role.TEXT, index=self._index))
            self._deferred.retry()
            await trio.sleep(HEARTBEAT_INTERVAL_S)


PrepareLong = Callable[[Work], Awaitable[Outcome]]


async def prepare_in_thread(work: Work) -> Outcome:
    """The tokenizer lets go of the interpreter while it works."""
    return await trio.to_thread.run_sync(work.run)
