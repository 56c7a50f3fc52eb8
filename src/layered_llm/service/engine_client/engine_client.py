"""The engine as one API process sees it: opens requests, spreads what comes back, and owes the abort of each that is left.

Must not know: how the links came to be, processes, HTTP.

Every method but the waiting ones of a stream is synchronous: a request is submitted, and its abort emitted, in one piece. The
outbox slot of the abort is reserved with the submit, so that emitting it can neither fail nor wait.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final, Self, TypeVar, assert_never

import attrs
import trio

from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import API_ID_LIMIT, ApiId, RequestId, api_of, compose_request_id
from layered_llm.domain.messages.api_text import (
    Accepted,
    Detokenized,
    Rejected,
    Submit,
    TextEmitted,
    TextQuestion,
    TextToApi,
    Tokenized,
    TokenizerDescribed,
)
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import (
    AbortByName,
    AbortTally,
    ApiToSupervisor,
    EnginePhase,
    EngineState,
    EngineStatus,
    FindRequest,
    RequestFate,
    RequestFound,
    RequestsAborted,
    Role,
    StateQuery,
    StateReport,
)
from layered_llm.domain.metrics import ABORTS_LOST, Measured
from layered_llm.domain.placement import ANYWHERE, Placement
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.domain.sampling import SEED_LIMIT, SamplingParams
from layered_llm.domain.verdicts import RejectReason
from layered_llm.service.engine_client.ended_requests import fate_among, is_meant
from layered_llm.service.engine_client.open_requests import OpenRequests
from layered_llm.service.engine_client.request_stream import RequestStream, TextConnection
from layered_llm.transport.outbox import Outbox
from layered_llm.transport.peers import STATE_TIMEOUT_S

SLOTS_OF_A_REQUEST: Final = 2
"""What opens it, and its Abort."""
_NOT_STARTED: Final = EngineStatus(
    phase=EnginePhase.STARTING, generation=0, supervisor_pid=0, detail="waiting for the engine's processes"
)


_SaidT = TypeVar("_SaidT", EngineState, RequestsAborted, RequestFound)


@attrs.define(eq=False)
class _Answer:
    came: trio.Event = attrs.field(factory=trio.Event)
    said: EngineState | RequestsAborted | RequestFound | None = None


@attrs.define(eq=False, kw_only=True)
class EngineClient:
    """Implements the `Engine` protocol."""

    api: Final[ApiId]
    pid: Final[int]
    _max_open_requests: int
    _draw_seed: Callable[[], int]
    _more_metrics: Callable[[], tuple[Measured, ...]] = tuple
    """What else is counted in this process."""
    _next_request: int = attrs.field(init=False, default=0)
    _requests: OpenRequests = attrs.field(init=False, factory=OpenRequests)
    _connections: tuple[TextConnection, ...] = attrs.field(init=False, default=())
    _texts: tuple[TextConnection, ...] = attrs.field(init=False, default=())
    """Those that new requests go to."""
    _supervisor: Outbox[ApiToSupervisor] | None = attrs.field(init=False, default=None)
    _next_query: int = attrs.field(init=False, default=1)
    _answers: dict[int, _Answer] = attrs.field(init=False, factory=dict)
    _aborts_lost: int = attrs.field(init=False, default=0)
    _status: EngineStatus = attrs.field(init=False, default=_NOT_STARTED)
    _status_changed: trio.Event = attrs.field(init=False, factory=trio.Event)
    _is_supervisor_stalled: bool = attrs.field(init=False, default=False)

    @classmethod
    def drawn(
        cls,
        *,
        pid: int,
        max_open_requests: int,
        randbelow: Callable[[int], int],
        more_metrics: Callable[[], tuple[Measured, ...]] = tuple,
    ) -> Self:
        """A client whose id, and whose seeds for requests that name none, come from `randbelow`."""
        return cls(
            api=ApiId(1 + randbelow(API_ID_LIMIT - 1)),
            pid=pid,
            max_open_requests=max_open_requests,
            draw_seed=partial(randbelow, SEED_LIMIT),
            more_metrics=more_metrics,
        )

    def status(self) -> EngineStatus:
        if not self._is_supervisor_stalled:
            return self._status
        return attrs.evolve(self._status, stalled=(*self._status.stalled, Role.SUPERVISOR.value))

    async def status_change(self) -> EngineStatus:
        """Waits for the next change of the status."""
        await self._status_changed.wait()
        return self.status()

    def open(
        self, owner: contextlib.ExitStack, prompt: Prompt, params: SamplingParams, placement: Placement = ANYWHERE
    ) -> RequestStream | Rejected:
        """Submits a request that is aborted when `owner` is closed before its end."""
        stream = self._begin(owner, placement.tenant, params.n, params.max_tokens)
        if isinstance(stream, RequestStream):
            seed = self._draw_seed() if params.seed is None else params.seed
            opening = Submit(
                request=stream.request,
                prompt=prompt,
                params=params,
                seed=seed,
                placement=placement,
                incarnation=stream.incarnation,
                output_ids=stream.output_ids,
            )
            stream.connection.outbox.emit(opening)
        return stream

    def ask(
        self, owner: contextlib.ExitStack, question: Callable[[RequestId], TextQuestion], tenant: str = ""
    ) -> RequestStream | Rejected:
        """Asks a question that is aborted when `owner` is closed before its answer."""
        stream = self._begin(owner, tenant, 0, None)
        if isinstance(stream, RequestStream):
            stream.connection.outbox.emit(question(stream.request))
        return stream

    def _begin(
        self, owner: contextlib.ExitStack, tenant: str, choices: int, max_tokens: int | None
    ) -> RequestStream | Rejected:
        """A request in the table, whose opening message is to be emitted before anything else can happen."""
        request = compose_request_id(self.api, self._next_request)
        self._next_request += 1
        if not self._texts:
            return self._not_ready(request)
        connection, open_count = min(self._texts, key=attrgetter("open_requests")), len(self._requests.streams)
        if open_count >= self._max_open_requests or not connection.outbox.reserve(SLOTS_OF_A_REQUEST):
            return Rejected(
                request=request,
                reason=RejectReason.QUEUE_FULL,
                message=f"this server process holds {open_count} requests, the limit is {self._max_open_requests}",
            )
        stream = self._requests.open(
            request, connection, trio.current_time(), tenant=tenant, choices=choices, max_tokens=max_tokens
        )
        owner.callback(stream.close, AbortReason.CLIENT_GONE)
        return stream

    def _not_ready(self, request: RequestId) -> Rejected:
        phase = self._status.phase
        reason = RejectReason.SHUTTING_DOWN if phase is EnginePhase.STOPPING else RejectReason.NOT_READY
        return Rejected(request=request, reason=reason, message=f"The engine is {phase.value}: {self._status.detail}")

    def close_all(self, reason: AbortReason) -> None:
        """Leaves every open request; their readers hear that the engine is lost to them."""
        for stream in list(self._requests.streams.values()):
            self._requests.close(stream, reason)

    async def state(self, *, flush_cache: bool = False) -> EngineState:
        """The reports of all processes that answer in time; the scheduler's after it flushed its prefix cache, if asked."""
        answer = await self._ask(lambda query: StateQuery(query=query, flush_cache=flush_cache), EngineState)
        return answer or EngineState(query=0, reports=(self.report(0),), silent=(Role.SUPERVISOR.value,))

    async def abort(self, request: RequestId | None, tenant: str | None = "", names: tuple[str, ...] = ()) -> int:
        """Ends the tenant's body that `request` or one of `names` names, whichever API process has it, or all.

        Returns how many were open. Raises EngineLost when another API process may have it and does not answer.
        """
        count = self.abort_here(request, tenant, names)
        is_ours = request is not None and api_of(request) == self.api and (count > 0 or not names)
        if is_ours or self._supervisor is None:  # without a supervisor no API process has anything open
            return count
        answer = await self._ask(
            lambda query: AbortByName(query=query, request=request, tenant=tenant, names=names), RequestsAborted
        )
        if answer is None:
            raise EngineLost("the process that may have the request does not answer")
        return count + answer.count

    def abort_here(self, request: RequestId | None, tenant: str | None, names: tuple[str, ...] = ()) -> int:
        """The same for what this process has open."""
        is_for_all = request is None and not names
        left = [
            stream
            for stream in self._requests.streams.values()
            if (is_for_all and tenant in {None, stream.tenant}) or is_meant(stream, request, tenant, names)
        ]
        for stream in left:
            self._requests.close(stream, AbortReason.ADMINISTRATIVE)
        return len(left)

    async def find(self, request: RequestId | None, tenant: str | None = "", names: tuple[str, ...] = ()) -> RequestFate | None:
        """What became of the tenant's body that `request` or one of `names` names, whichever API process had it.

        None where nobody knows. Raises EngineLost when another API process may know and does not answer.
        """
        own = self.find_here(request, tenant, names)
        is_certain = own is not None and (own.is_open or (request is not None and api_of(request) == self.api))
        if is_certain or self._supervisor is None:
            return own
        answer = await self._ask(
            lambda query: FindRequest(query=query, request=request, tenant=tenant, names=names), RequestFound
        )
        if answer is None:
            raise EngineLost("the process that may know the request does not answer")
        return answer.fate if own is None or (answer.fate is not None and answer.fate.is_open) else own

    def find_here(self, request: RequestId | None, tenant: str | None, names: tuple[str, ...] = ()) -> RequestFate | None:
        """The same for what this process has and had."""
        if any(is_meant(stream, request, tenant, names) for stream in self._requests.streams.values()):
            return RequestFate(is_open=True)
        return fate_among(self._requests.ended, request, tenant, names)

    def report(self, query: int) -> StateReport:
        """This process's own report."""
        return StateReport(
            query=query,
            role=Role.API,
            index=self.api,
            pid=self.pid,
            open_requests=len(self._requests.streams),
            maps=(
                ("requests", len(self._requests.streams)),
                ("requests_of_text_workers", sum(text.open_requests for text in self._connections)),
            ),
            metrics=(
                *self._requests.metrics(),
                Measured.of(ABORTS_LOST, self._aborts_lost),
                *self._more_metrics(),
            ),
            aborts_sent=tuple(AbortTally(peer=Role.TEXT, index=text.text, aborts=text.aborts_sent) for text in self._texts),
        )

    def on_supervisor(self, supervisor: Outbox[ApiToSupervisor] | None) -> None:
        """There is a link to the supervisor, or there is none any more."""
        self._supervisor = supervisor

    def on_status(self, status: EngineStatus, connections: tuple[TextConnection, ...]) -> None:
        """The engine's status changed; `connections` are those that there are now, and what others had is lost.

        While it is READY new requests go to those of its generation; one before may still serve what it has.
        """
        gone = [text for text in self._connections if text not in connections]
        self._aborts_lost += sum(text.aborts_sent for text in gone)
        self._connections, self._status = connections, status
        is_ready = status.phase is EnginePhase.READY
        self._texts = tuple(text for text in connections if is_ready and text.generation == status.generation)
        if gone:
            self._requests.lose(gone)
        self._tell_status()

    def on_supervisor_stall(self, *, is_stalled: bool) -> None:
        """The supervisor has been silent for too long, or speaks again."""
        if is_stalled != self._is_supervisor_stalled:
            self._is_supervisor_stalled = is_stalled
            self._tell_status()

    def _tell_status(self) -> None:
        changed, self._status_changed = self._status_changed, trio.Event()
        changed.set()

    def on_answer(self, said: EngineState | RequestsAborted | RequestFound) -> None:
        """The supervisor's answer to a question; one that nobody waits for any more is dropped."""
        answer = self._answers.get(said.query)
        if answer is not None:
            answer.said = said
            answer.came.set()

    def on_text(self, message: TextToApi) -> None:
        """Something from a text worker."""
        match message:
            case TextEmitted():
                self._requests.on_text(message, trio.current_time())
            case Accepted() | Rejected():
                self._requests.on_verdict(message)
            case Tokenized() | Detokenized() | TokenizerDescribed():
                self._requests.on_answer(message)
            case _:
                assert_never(message)

    async def _ask(
        self, question: Callable[[int], StateQuery | AbortByName | FindRequest], kind: type[_SaidT]
    ) -> _SaidT | None:
        """The supervisor's answer to a question by number, None where there is no supervisor, or no answer in time."""
        if self._supervisor is None:
            return None
        query, self._next_query = self._next_query, self._next_query + 1
        answer = self._answers[query] = _Answer()
        try:
            self._supervisor.emit(question(query))
            with trio.move_on_after(2 * STATE_TIMEOUT_S):
                await answer.came.wait()
        finally:
            del self._answers[query]
        return answer.said if isinstance(answer.said, kind) else None
