"""The links between the supervisor and every other process: readiness, liveness, verdicts on the dead, state reports.

Must not know: what a request says.

An engine *generation* is one set of text, scheduler and runtime processes with sockets of its own. When one of them dies the
whole generation ends, every open request with it, and a new one is started on fresh sockets: no stale message can reach it.
"""

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from layered_llm.domain.ids import ApiId, RequestId
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.metrics import Measured

PID_LIMIT: Final = 1 << 31


@enum.unique
class Role(enum.StrEnum):
    """What a process is for; also the last part of its module's name."""

    API = "api"
    TEXT = "text"
    SCHEDULER = "scheduler"
    RUNTIME = "runtime"
    SUPERVISOR = "supervisor"


@enum.unique
class EnginePhase(enum.StrEnum):
    """Where an engine stands, as `/health` tells it."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    """Will not come back by itself; `detail` of the status says why."""
    STOPPING = "stopping"


@attrs.frozen(kw_only=True)
class ProcessReady:
    """A text worker or the scheduler can work; the scheduler says it for the runtime too, and tells the limits."""

    role: Role
    index: int
    limits: EngineLimits | None = None


@attrs.frozen(kw_only=True)
class ApiHello:
    """An API process introduces itself; answered by EngineStatus, now and at every change."""

    api: ApiId
    pid: int

    def __attrs_post_init__(self) -> None:
        if not 0 < self.pid < PID_LIMIT:
            raise ValueError(f"{self.pid} is no number of a process")


@attrs.frozen(kw_only=True)
class ApiGoodbye:
    """The API process has no open request and leaves in good order. Answered by Stop; the last one ends the engine."""

    api: ApiId


@attrs.frozen(kw_only=True)
class EngineStatus:
    """Where the engine stands; an API process connects to `text_addresses` when the phase is READY."""

    phase: EnginePhase
    generation: int
    supervisor_pid: int
    detail: str
    """One line for people: what is going on, or what went wrong and how to mend it."""
    text_addresses: tuple[str, ...] = ()
    still_serving: tuple[int, ...] = ()
    """Earlier generations that have open requests and take no more."""
    limits: EngineLimits | None = None
    stalled: tuple[str, ...] = ()
    """Processes that are stopped or do not answer, and may go on; requests are taken, but may wait."""

    @property
    def trouble(self) -> str:
        """One line for people about what is `stalled`; empty where nothing is."""
        return f"{', '.join(self.stalled)}: stopped, or without an answer for some seconds" if self.stalled else ""


@attrs.frozen(kw_only=True)
class Heartbeat:
    """Sent by each text worker, the scheduler and the supervisor at a fixed interval and answered by nobody: the silence is the
    signal.

    The runtime has no event loop to send it: its life shows in the state of its process and in the scheduler's step deadline.
    An API process is watched by its pid alone.
    """

    role: Role
    index: int


@attrs.frozen(kw_only=True)
class EngineSized:
    """Sent to each text worker that is ready, once the scheduler told the limits: from then on it can judge requests."""

    limits: EngineLimits


@attrs.frozen(kw_only=True)
class ApiDied:
    """Sent to the text workers: this API process is gone, with a goodbye or without; abort all that it had open."""

    api: ApiId


@attrs.frozen(kw_only=True)
class Stop:
    """Leave now, exit code 0."""


@attrs.frozen(kw_only=True)
class StateQuery:
    """Asks for a StateReport; from an API process to the supervisor it asks for everybody's."""

    query: int
    flush_cache: bool = False
    """The scheduler first frees all pages that only its prefix cache holds."""


@attrs.frozen(kw_only=True)
class AbortTally:
    """How many aborts went over the link with one peer, as the reporting end of it counts them."""

    peer: Role
    index: int
    aborts: int


@attrs.frozen(kw_only=True)
class StateReport:
    """One process's state at one moment."""

    query: int
    role: Role
    index: int
    pid: int
    open_requests: int
    maps: tuple[tuple[str, int], ...]
    """Name and size of every per-request map in the process: all 0 when no request is open."""
    gauges: tuple[tuple[str, int], ...] = ()
    """Figures of the moment (running, pages_free, …)."""
    metrics: tuple[Measured, ...] = ()
    """What only grows, so that the sum over processes is right, and gauges that one process alone has."""
    violations: tuple[str, ...] = ()
    """What the process's own `check()` found broken."""
    aborts_sent: tuple[AbortTally, ...] = ()
    """By processes of this generation that they were for: what differs from the receiver's figure is still on its way."""
    aborts_taken: tuple[AbortTally, ...] = ()
    """By processes that they came from."""


@attrs.frozen(kw_only=True)
class EngineState:
    """The answer to an API process's StateQuery: the report of each process that answered in time."""

    query: int
    reports: tuple[StateReport, ...]
    silent: tuple[str, ...]
    """Names of processes that did not answer in time, or that are stopped."""


@attrs.frozen(kw_only=True)
class AbortByName:
    """Ends a request of any API process, or all, as far as they are the tenant's.

    Sent to the supervisor by the API process that was asked, and passed on to those that may have the request. Each of these
    ends what it has open, as if its own client had left, and answers with RequestsAborted.
    """

    query: int
    request: RequestId | None
    names: tuple[str, ...] = ()
    """What the request's client may have called it. Without a request and without names all are meant."""
    tenant: str | None = ""
    """None: anybody's."""


@attrs.frozen(kw_only=True)
class RequestsAborted:
    """The answer to AbortByName, on each of its two links; an ended or unknown request is no fault, and counts nothing."""

    query: int
    count: int
    """How many requests were open, and are not any more."""


@attrs.frozen(kw_only=True)
class RequestFate:
    """Whether a request is open, or how it ended."""

    is_open: bool = False
    reason: str = ""
    """One word, by which the end is known; empty while it is open."""
    error: str | None = None
    """What went wrong, if anything did, in a line."""


@attrs.frozen(kw_only=True)
class FindRequest:
    """Asks what became of a request, which is named as in AbortByName and travels as that does."""

    query: int
    request: RequestId | None
    names: tuple[str, ...] = ()
    tenant: str | None = ""
    """None: anybody's."""


@attrs.frozen(kw_only=True)
class RequestFound:
    """The answer to FindRequest, on each of its two links."""

    query: int
    fate: RequestFate | None
    """None where it is not known, or not any more."""


ApiToSupervisor = ApiHello | ApiGoodbye | StateQuery | StateReport | AbortByName | RequestsAborted | FindRequest | RequestFound
SupervisorToApi = (
    EngineStatus | Heartbeat | StateQuery | EngineState | AbortByName | RequestsAborted | FindRequest | RequestFound | Stop
)
EngineToSupervisor = ProcessReady | Heartbeat | StateReport
SupervisorToEngine = EngineSized | ApiDied | StateQuery | Stop


def is_quiescent(state: EngineState) -> bool:
    """Whether every process answered, holds nothing of any request, no abort is on its way, and every page is free or cached.

    A request that its API process has left is in nobody's hands while it and its abort are on their way: that the receiver has
    taken as many aborts as were sent tells that none is.
    """
    schedulers = [report for report in state.reports if report.role is Role.SCHEDULER]
    return (
        not state.silent
        and len(schedulers) == 1
        and _pages_are_back(dict(schedulers[0].gauges))
        and all(_is_idle(report) for report in state.reports)
        and not _aborts_on_their_way(state)
    )


def _aborts_on_their_way(state: EngineState) -> bool:
    taken = {
        (report.role, report.index, tally.peer, tally.index): tally.aborts
        for report in state.reports
        for tally in report.aborts_taken
    }
    return any(
        taken.get((tally.peer, tally.index, report.role, report.index), 0) != tally.aborts
        for report in state.reports
        for tally in report.aborts_sent
    )


def _is_idle(report: StateReport) -> bool:
    return not report.open_requests and not report.violations and not any(size for _, size in report.maps)


def _pages_are_back(gauges: Mapping[str, int]) -> bool:
    names = ("running", "waiting", "pages_free", "pages_cached", "pages_total")
    if not all(name in gauges for name in names):
        return False
    running, waiting, free, cached, total = (gauges[name] for name in names)
    return running == 0 and waiting == 0 and free + cached == total
