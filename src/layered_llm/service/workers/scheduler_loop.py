"""The loop around the scheduler core: moves messages between text workers, runtime and supervisor.

Must not know: what a message means, processes, sockets.
"""

import logging
from collections.abc import Mapping
from typing import Never, assert_never

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import TextId
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.scheduler_runtime import (
    RuntimeToScheduler,
    SchedulerToRuntime,
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
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.emission import Effects
from layered_llm.scheduling.plan import NextStep
from layered_llm.scheduling.policy import SchedulingPolicy
from layered_llm.service.workers.runtime_ranks import WARM_UP_SILENCE_S, RuntimeRanks, StepDeadlines
from layered_llm.service.workers.schedule_trace import ScheduleTrace
from layered_llm.service.workers.scheduler_figures import SchedulerFigures
from layered_llm.transport.outbox import Outbox
from layered_llm.transport.peers import HEARTBEAT_INTERVAL_S
from layered_llm.transport.ports import Garbled, GroupLink, MessageLink, PeerLink, SendOutcome
from layered_llm.transport.sparse_log import SparseLog

logger = logging.getLogger(__name__)


class StepOverdue(Exception):  # noqa: N818 - states what happened
    """The runtime did not answer a step in time, or fell silent while it warmed up; it hangs, and its process has to end."""


@attrs.frozen(kw_only=True)
class SchedulerLinks:
    """The three links of the scheduler."""

    texts: PeerLink[SchedulerToText, TextToScheduler]
    runtime: GroupLink[SchedulerToRuntime, RuntimeToScheduler]
    supervisor: MessageLink[EngineToSupervisor, SupervisorToEngine]


@attrs.define
class SchedulerLoop:
    """The scheduler's process or task. `run` lives until the supervisor says Stop."""

    _pid: int
    _links: SchedulerLinks
    _to_runtime: Outbox[SchedulerToRuntime]
    _to_supervisor: Outbox[EngineToSupervisor]
    _policy: SchedulingPolicy
    _figures: SchedulerFigures
    _trace: ScheduleTrace | None
    _texts: Mapping[str, TextId]
    """The text workers by their names on the link: any process of the same user can connect to it."""
    _ranks: RuntimeRanks
    _names: Mapping[TextId, str] = attrs.field(
        init=False, default=attrs.Factory(lambda self: {text: name for name, text in self._texts.items()}, takes_self=True)
    )
    """The same the other way round."""
    _deadlines: StepDeadlines = attrs.field(factory=StepDeadlines)
    _warnings_of_strangers: SparseLog = attrs.field(factory=SparseLog)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._to_runtime.run, self._links.runtime)
            nursery.start_soon(self._to_supervisor.run, self._links.supervisor)
            nursery.start_soon(self._beat)
            await self._until_runtime_ready()
            runtime = self._ranks.limits
            core = Scheduler(limits=runtime, policy=self._policy, traces=self._trace is not None)
            limits = EngineLimits(context_tokens=runtime.context_tokens, vocabulary_size=runtime.vocabulary_size)
            nursery.start_soon(self._serve_texts, core)
            nursery.start_soon(self._serve_runtime, core)
            nursery.start_soon(self._expire, core)
            nursery.start_soon(self._watch_steps)
            self._to_supervisor.emit(ProcessReady(role=Role.SCHEDULER, index=0, limits=limits))
            await self._obey(core)
            nursery.cancel_scope.cancel(reason="told to stop")

    async def _until_runtime_ready(self) -> None:
        """Loading takes what it takes, and a rank that dies is seen by its exit; one that warms up must go on saying so."""
        with trio.CancelScope() as silence:
            while not self._ranks.are_ready:
                for rank, word in await self._links.runtime.receive():
                    self._ranks.hear(rank, word, trio.current_time())
                silence.deadline = self._ranks.silent_s
        if silence.cancelled_caught:
            raise StepOverdue(f"the runtime hangs: it was silent for {WARM_UP_SILENCE_S:g} s while it warmed up")

    async def _obey(self, core: Scheduler) -> None:
        while True:
            for order in await self._links.supervisor.receive():
                match order:
                    case Stop():
                        return
                    case StateQuery(query=query, flush_cache=flush_cache):
                        if flush_cache:
                            core.flush_cache()
                        self._report(core, query)
                    case ApiDied() | EngineSized():
                        raise InvariantViolated(f"{order!r} is for text workers")
                    case _:
                        assert_never(order)

    def _report(self, core: Scheduler, query: int) -> None:
        for rank in self._ranks.reports(query):
            self._to_supervisor.emit(rank)
        self._to_supervisor.emit(self._figures.report(core.statistics(), core.check(), query=query, pid=self._pid))

    async def _serve_texts(self, core: Scheduler) -> None:
        while True:
            for peer, message in await self._links.texts.receive():
                text = self._texts.get(peer)
                if text is None:
                    self._drop(peer)
                    continue
                if isinstance(message, Garbled):
                    raise InvariantViolated(f"{peer} sent what is no message: {message.reason}")
                self._apply(core.handle(text, message, _now_us()))
            self._advance(core)

    def _drop(self, peer: str) -> None:
        self._figures.messages_dropped += 1
        if self._warnings_of_strangers.is_due(trio.current_time()):
            dropped = self._figures.messages_dropped
            logger.warning("%s is no text worker of this engine: what it sent is dropped, %d messages by now", peer, dropped)

    async def _serve_runtime(self, core: Scheduler) -> None:
        while True:
            for rank, message in await self._links.runtime.receive():
                result = self._ranks.hear(rank, message, trio.current_time())
                if result is not None:
                    self._deadlines.answered(trio.current_time())
                    if self._trace is not None:
                        self._trace.completed(result, trio.current_time())
                    self._apply(core.complete(result, _now_us()))
            self._advance(core)

    async def _expire(self, core: Scheduler) -> None:
        while (next_us := core.next_expiry_us(_now_us())) is not None:
            await trio.sleep_until(next_us / 1e6)
            self._apply(core.expire(_now_us()))
            self._advance(core)

    async def _watch_steps(self) -> Never:
        while True:
            if self._deadlines.is_overdue(trio.current_time()):
                raise StepOverdue("the runtime did not answer a step in time")
            await trio.sleep_until(self._deadlines.next_look_s(trio.current_time()))

    def _advance(self, core: Scheduler) -> None:
        while isinstance(step := core.plan(_now_us()), NextStep):
            self._deadlines.sent(step.tokens, trio.current_time())
            self._figures.planned(tokens=step.tokens, waited_us=step.waited_us)
            if self._trace is not None and step.trace is not None:
                self._trace.planned(step.trace, trio.current_time())
            self._to_runtime.emit(step.message)

    def _apply(self, effects: Effects) -> None:
        if effects.is_first_failure:
            logger.warning("the model computed NaN or infinity; each request that meets it ends with an error")
        self._figures.came_about(effects, _now_us())
        if self._trace is not None:
            for release in effects.releases:
                self._trace.released(release, trio.current_time())
        for item in effects.outgoing:
            outcome = self._links.texts.send_nowait(self._names[item.worker], item.message)
            # One that cannot be reached has died: the supervisor learns of it, and ends this generation for that reason.
            if outcome is SendOutcome.FULL:
                raise InvariantViolated(f"text worker {item.worker} is full: credit bounds what it is sent")

    async def _beat(self) -> None:
        while True:
            self._to_supervisor.emit(Heartbeat(role=Role.SCHEDULER, index=0))
            await trio.sleep(HEARTBEAT_INTERVAL_S)


def _now_us() -> int:
    return round(trio.current_time() * 1e6)
