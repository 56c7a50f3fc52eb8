"""The supervisor's decisions, as a sans-I/O object: who is ready, who must be told what, who answers a state query.

Must not know: processes, sockets, clocks (time comes in as an argument), requests.

Peers are named as on the links: `api-3f2a`, `text-0`, `scheduler-0`. Every method returns the messages to send.
"""

from collections.abc import Iterable
from typing import Final, assert_never

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import ApiId, api_of
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.supervision import (
    AbortByName,
    ApiDied,
    ApiGoodbye,
    ApiHello,
    ApiToSupervisor,
    EnginePhase,
    EngineSized,
    EngineState,
    EngineStatus,
    EngineToSupervisor,
    FindRequest,
    Heartbeat,
    ProcessReady,
    RequestFate,
    RequestFound,
    RequestsAborted,
    Role,
    StateQuery,
    StateReport,
    Stop,
    SupervisorToApi,
    SupervisorToEngine,
)
from layered_llm.domain.metrics import MESSAGES_DROPPED, Measured
from layered_llm.service.settings.settings_fields import printable
from layered_llm.service.supervisor.gathering import Gathered, Gathering
from layered_llm.transport.peers import RESTART_WINDOW_S, STATE_TIMEOUT_S, api_of_peer, api_peer_name, peer_name
from layered_llm.transport.ports import Garbled

MAX_RESTARTS: Final = 3

Question = StateQuery | AbortByName | FindRequest
Answer = StateReport | RequestsAborted | RequestFound
Outgoing = tuple[str, SupervisorToApi | SupervisorToEngine]


@attrs.define
class Supervision:
    """What the supervisor knows. One generation of engine processes at a time."""

    _pid: int
    _ranks: int = 1
    """Of the runtime."""
    _max_restarts: int = MAX_RESTARTS
    """Within RESTART_WINDOW_S."""
    _phase: EnginePhase = EnginePhase.STARTING
    _detail: str = "looking for the model"
    _generation: int = 0
    _text_addresses: tuple[str, ...] = ()
    _limits: EngineLimits | None = None
    _expected: set[str] = attrs.field(factory=set)
    """Engine peers of this generation that are not ready yet."""
    _texts_to_size: set[str] = attrs.field(factory=set)
    _engine: tuple[str, ...] = ()
    """Engine peers of this generation."""
    _apis: dict[str, ApiId] = attrs.field(factory=dict)
    _any_api_came: bool = False
    _questions: Gathering[Question, Answer] = attrs.field(factory=Gathering)
    _restarts_s: list[float] = attrs.field(factory=list)
    _dropped: int = 0
    _stalled: tuple[str, ...] = ()

    def hears(self, peer: str, message: ApiToSupervisor | EngineToSupervisor | Garbled) -> bool:
        """Whether `peer` is who it says, and says what it may; anything else on the sockets is counted, and to be dropped.

        Any process of the same user can connect to them, and none but our own may change anything.
        """
        is_heard = self._is_heard(peer, message)
        self._dropped += not is_heard
        return is_heard

    def knows(self, api: ApiId) -> bool:
        """The API process has introduced itself and not left."""
        return api_peer_name(api) in self._apis

    def _is_heard(self, peer: str, message: ApiToSupervisor | EngineToSupervisor | Garbled) -> bool:
        match message:
            case Garbled() | ProcessReady(role=Role.SCHEDULER, limits=None):
                is_heard = False
            case ApiHello(api=api):
                is_heard = peer == api_peer_name(api) and api_of_peer(peer) == api
            case StateQuery() | AbortByName() | FindRequest() | RequestsAborted() | RequestFound():
                is_heard = peer in self._apis
            case ApiGoodbye(api=api) | StateReport(role=Role.API, index=api):
                is_heard = peer == api_peer_name(ApiId(api)) and peer in self._apis
            case StateReport(role=Role.RUNTIME):
                is_heard = peer == peer_name(Role.SCHEDULER, 0) and peer in self._engine
            case StateReport(role=role, index=index) | ProcessReady(role=role, index=index) | Heartbeat(role=role, index=index):
                is_heard = peer == peer_name(role, index) and peer in self._engine
            case _:
                assert_never(message)
        return is_heard

    @property
    def phase(self) -> EnginePhase:
        return self._phase

    @property
    def next_generation(self) -> int:
        """The number that the next `generation_started` will have."""
        return self._generation + 1

    @property
    def is_abandoned(self) -> bool:
        """Every API process that ever came has left in good order."""
        return self._any_api_came and not self._apis

    def note(self, detail: str) -> tuple[Outgoing, ...]:
        """Tells what is going on, without a change of phase."""
        return self._move(self._phase, detail)

    def generation_started(self, text_addresses: tuple[str, ...]) -> tuple[Outgoing, ...]:
        """New engine processes are on their way."""
        self._generation += 1
        self._text_addresses = text_addresses
        self._limits = None
        texts = tuple(peer_name(Role.TEXT, index) for index in range(len(text_addresses)))
        self._engine = (*texts, peer_name(Role.SCHEDULER, 0))
        self._expected, self._texts_to_size = set(self._engine), set(texts)
        why = f" again: {self._detail}" if self._phase is EnginePhase.RESTARTING else ""
        return self._move(self._phase, f"loading the model{why}")

    def stalled(self, peers: Iterable[str]) -> tuple[Outgoing, ...]:
        """These processes are stopped or do not answer, and no others are; told when it changes."""
        stalled = tuple(sorted(set(peers)))
        if stalled == self._stalled:
            return ()
        self._stalled = stalled
        return self._move(self._phase, self._detail)

    def beat(self) -> tuple[Outgoing, ...]:
        """A sign of life for every API process."""
        return tuple((peer, Heartbeat(role=Role.SUPERVISOR, index=0)) for peer in self._apis)

    def process_ready(self, ready: ProcessReady) -> tuple[Outgoing, ...]:
        """One more engine process can work; with the last one the engine is READY."""
        self._expected.discard(peer_name(ready.role, ready.index))
        self._limits = ready.limits or self._limits
        sized = self._size_texts()
        if self._expected or self._phase in (EnginePhase.STOPPING, EnginePhase.FAILED):
            return sized
        if self._limits is None:
            raise InvariantViolated("every process is ready and none told the limits")
        return (*sized, *self._move(EnginePhase.READY, "ready"))

    def generation_died(self, reason: str, now_s: float) -> tuple[Outgoing, ...]:
        """An engine process ended by itself. A start that failed is not repeated: it would fail again."""
        was_ready = self._phase is EnginePhase.READY
        self._restarts_s = [at_s for at_s in self._restarts_s if now_s - at_s < RESTART_WINDOW_S]
        silenced = self._forget_engine()
        if not was_ready:
            return (*silenced, *self._move(EnginePhase.FAILED, reason))
        if len(self._restarts_s) >= self._max_restarts:
            return (*silenced, *self._move(EnginePhase.FAILED, f"{reason}, {self._too_often()}"))
        self._restarts_s.append(now_s)
        return (*silenced, *self._move(EnginePhase.RESTARTING, reason))

    def _too_often(self) -> str:
        window_min = round(RESTART_WINDOW_S / 60)
        return f"and was started again {len(self._restarts_s)} times in {window_min} minutes already: not again"

    def start_failed(self, reason: str) -> tuple[Outgoing, ...]:
        """Nothing could be started at all."""
        return self._move(EnginePhase.FAILED, reason)

    def stopping(self) -> tuple[Outgoing, ...]:
        """Everybody leaves."""
        told = self._move(EnginePhase.STOPPING, "shutting down")
        return (*told, *((peer, Stop()) for peer in self._engine))

    def api_hello(self, hello: ApiHello) -> tuple[Outgoing, ...]:
        """An API process introduced itself."""
        peer = api_peer_name(hello.api)
        self._apis[peer] = hello.api
        self._any_api_came = True
        return ((peer, self._status()),)

    def api_goodbye(self, api: ApiId) -> tuple[Outgoing, ...]:
        """An API process leaves in good order; it waits for the Stop, the last one for the end of the supervisor."""
        peer = api_peer_name(api)
        answers = self._forget_api(peer)
        return (*answers, *self._tell_texts(ApiDied(api=api)), (peer, Stop())) if self._apis else answers

    def api_died(self, api: ApiId) -> tuple[Outgoing, ...]:
        """An API process is gone without goodbye (or after it: then nothing is open and nothing happens)."""
        if api_peer_name(api) not in self._apis:
            return ()
        answers = self._forget_api(api_peer_name(api))
        return (*answers, *self._tell_texts(ApiDied(api=api)))

    def ask(self, asker: str, question: Question, now_s: float) -> tuple[Outgoing, ...]:
        """Passes an API process's question on to those that can answer it; there may be nobody."""
        asked = self._asked(asker, question)
        ranks = self._ranks if self._engine and isinstance(question, StateQuery) else 0
        answering = {*asked, *(peer_name(Role.RUNTIME, rank) for rank in range(ranks))}
        number = self._questions.ask(asker, question, answering, now_s + STATE_TIMEOUT_S)
        passed_on = attrs.evolve(question, query=number)
        return tuple((peer, passed_on) for peer in sorted(asked)) or self._answers(self._questions.answered())

    def answered(self, peer: str, answer: Answer) -> tuple[Outgoing, ...]:
        """One answer; the last one answers the asker. The scheduler also speaks for the ranks of the runtime."""
        if isinstance(answer, StateReport) and answer.role is Role.RUNTIME:
            peer = peer_name(Role.RUNTIME, answer.index)
        return self._answers(self._questions.answer(peer, answer.query, answer))

    def expire_queries(self, now_s: float) -> tuple[Outgoing, ...]:
        """Answers the state queries whose time is over with what came.

        Of a request nothing is made up for a process that hangs: the asker learns by its own clock that it cannot know.
        """
        late = self._questions.expire(now_s)
        return self._answers(gathered for gathered in late if isinstance(gathered.question, StateQuery))

    def _tell_texts(self, word: SupervisorToEngine) -> tuple[Outgoing, ...]:
        return tuple((peer, word) for peer in self._engine if peer.startswith(Role.TEXT))

    def _size_texts(self) -> tuple[Outgoing, ...]:
        """Tells the limits to the text workers that came up since they are known, or before."""
        if self._limits is None:
            return ()
        ready = self._texts_to_size - self._expected
        self._texts_to_size -= ready
        return tuple((peer, EngineSized(limits=self._limits)) for peer in sorted(ready))

    def _asked(self, asker: str, question: Question) -> set[str]:
        """Of a state everybody; of a request the API process that issued it, or all: the asker has seen to its own."""
        if isinstance(question, StateQuery):
            return {*self._apis, *self._engine}
        others = self._apis.keys() - {asker}
        return others if question.request is None else others & {api_peer_name(api_of(question.request))}

    def _answers(self, gathered: Iterable[Gathered[Question, Answer]]) -> tuple[Outgoing, ...]:
        return tuple((each.asker, self._answer(each)) for each in gathered)

    def _answer(self, gathered: Gathered[Question, Answer]) -> EngineState | RequestsAborted | RequestFound:
        match gathered.question:
            case StateQuery(query=query):
                reports = (report for report in gathered.answers if isinstance(report, StateReport))
                silent = tuple(sorted({*gathered.missing, *self._stalled}))
                return EngineState(query=query, reports=(*reports, self._own_report(gathered.number)), silent=silent)
            case AbortByName(query=query):
                counts = (said.count for said in gathered.answers if isinstance(said, RequestsAborted))
                return RequestsAborted(query=query, count=sum(counts))
            case FindRequest(query=query):
                fates = (said.fate for said in gathered.answers if isinstance(said, RequestFound))
                return RequestFound(query=query, fate=_last_word(fates))
            case _:
                assert_never(gathered.question)

    def _own_report(self, query: int) -> StateReport:
        return StateReport(
            query=query,
            role=Role.SUPERVISOR,
            index=0,
            pid=self._pid,
            open_requests=0,
            maps=(),
            metrics=(Measured.of(MESSAGES_DROPPED, self._dropped),),
        )

    def _forget_api(self, peer: str) -> tuple[Outgoing, ...]:
        self._apis.pop(peer, None)
        return self._answers(self._questions.forget(peer))

    def _forget_engine(self) -> tuple[Outgoing, ...]:
        """The dead give no report; who asked for it hears so at once, since `silent` names those that are still missing."""
        waiting = self._questions.give_up(self._engine)
        self._engine, self._expected, self._stalled = (), set(), ()
        return self._answers(waiting)

    def _move(self, phase: EnginePhase, detail: str) -> tuple[Outgoing, ...]:
        self._phase, self._detail = phase, printable(detail)
        return tuple((peer, self._status()) for peer in self._apis)

    def _status(self) -> EngineStatus:
        is_ready = self._phase is EnginePhase.READY
        return EngineStatus(
            phase=self._phase,
            generation=self._generation,
            supervisor_pid=self._pid,
            detail=self._detail,
            text_addresses=self._text_addresses if is_ready else (),
            limits=self._limits if is_ready else None,
            stalled=self._stalled,
        )


def _last_word(fates: Iterable[RequestFate | None]) -> RequestFate | None:
    """What became of a request: that it is open, if anybody says so, else what the first one knows."""
    known = [fate for fate in fates if fate is not None]
    return next((fate for fate in known if fate.is_open), known[0] if known else None)
