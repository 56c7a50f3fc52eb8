"""The engine as a scenario sees it: what the scenario opened, read and left, and what the engine says of itself at rest.

Must not know: faults, links.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import Accepted, Rejected, TextQuestion
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import EngineState, EngineStatus, RequestFate, Role, is_quiescent
from layered_llm.domain.metrics import ABORTS_EMITTED, ABORTS_HANDLED, ABORTS_LATE, ABORTS_LOST, Metric
from layered_llm.domain.placement import ANYWHERE, Placement
from layered_llm.domain.ports.engine import RequestSummary
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import Backlog, ChoiceDelta, RequestEnded, StreamEvent
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.engine_client.request_stream import RequestStream, TextConnection

Asked = tuple[Prompt, SamplingParams]
"""A request without its id: the same in each run of a scenario."""
Tokens = tuple[tuple[int, ...], ...]
"""Of each choice."""
_COMPARED: Final = (ABORTS_EMITTED, ABORTS_HANDLED, ABORTS_LATE, ABORTS_LOST)


@attrs.define(eq=False)
class ObservedStream:
    """Implements `EngineStream`; notes what is delivered, and what of it should not be."""

    asked: Asked
    stream: RequestStream
    broken: list[str]
    is_ended: bool = False
    _tokens: list[list[int]] = attrs.field(init=False)
    _reasons: list[FinishReason] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        choices = self.asked[1].n
        self._tokens = [[] for _ in range(choices)]
        self._reasons = [FinishReason.RUNNING] * choices

    @property
    def request(self) -> RequestId:
        return self.stream.request

    @property
    def tokens(self) -> Tokens:
        """What was delivered so far."""
        return tuple(tuple(tokens) for tokens in self._tokens)

    async def verdict(self) -> Accepted | Rejected:
        return await self.stream.verdict()

    async def receive(self) -> tuple[StreamEvent, ...]:
        events = await self.stream.receive()
        for event in events:
            self._note(event)
        return events

    def bound(self, backlog: Backlog) -> None:
        self.stream.bound(backlog)

    def summary(self) -> RequestSummary:
        return self.stream.summary()

    def join(self, first: RequestId) -> None:
        self.stream.join(first)

    def call(self, name: str) -> None:
        self.stream.call(name)

    def close(self, reason: AbortReason) -> None:
        self.stream.close(reason)

    def _note(self, event: StreamEvent) -> None:
        if self.is_ended:
            self.broken.append(f"C1: request {self.request} goes on after its end")
        if self.stream.was_left:
            self.broken.append(f"C6: request {self.request} is delivered to after it was left")
        match event:
            case ChoiceDelta():
                self._note_delta(event)
            case RequestEnded():
                self._note_end(event)

    def _note_delta(self, delta: ChoiceDelta) -> None:
        if self._reasons[delta.choice] is not FinishReason.RUNNING:
            self.broken.append(f"C1: choice {delta.choice} of request {self.request} goes on after it finished")
        self._reasons[delta.choice] = delta.finish_reason
        self._tokens[delta.choice].extend(delta.token_ids)

    def _note_end(self, end: RequestEnded) -> None:
        self.is_ended = True
        if FinishReason.RUNNING in self._reasons:
            self.broken.append(f"C1: request {self.request} ended before each of its choices")
        if end.usage.completion_tokens != sum(map(len, self._tokens)):
            self.broken.append(f"request {self.request} counts {end.usage.completion_tokens} tokens, not those it delivered")


@attrs.define(eq=False)
class ObservedEngine:
    """Implements the `Engine` protocol for one scenario.

    A request without a seed gets the next one of the scenario's own, so that its output is the same whatever runs beside it.
    """

    client: EngineClient
    _next_seed: int
    broken: list[str] = attrs.field(init=False, factory=list)
    streams: list[ObservedStream] = attrs.field(init=False, factory=list)
    questions: list[RequestStream] = attrs.field(init=False, factory=list)

    def status(self) -> EngineStatus:
        return self.client.status()

    def open(
        self, owner: contextlib.ExitStack, prompt: Prompt, params: SamplingParams, placement: Placement = ANYWHERE
    ) -> ObservedStream | Rejected:
        if params.seed is None:
            params = attrs.evolve(params, seed=self._next_seed)
            self._next_seed += 1
        stream = self.client.open(owner, prompt, params, placement)
        if isinstance(stream, Rejected):
            return stream
        observed = ObservedStream((prompt, params), stream, self.broken)
        self.streams.append(observed)
        return observed

    def ask(
        self, owner: contextlib.ExitStack, question: Callable[[RequestId], TextQuestion], tenant: str = ""
    ) -> RequestStream | Rejected:
        asked = self.client.ask(owner, question, tenant)
        if not isinstance(asked, Rejected):
            self.questions.append(asked)
        return asked

    async def find(self, request: RequestId | None, tenant: str | None = "", names: tuple[str, ...] = ()) -> RequestFate | None:
        return await self.client.find(request, tenant, names)

    async def abort(self, request: RequestId | None, tenant: str | None = "", names: tuple[str, ...] = ()) -> int:
        return await self.client.abort(request, tenant, names)

    async def state(self, *, flush_cache: bool = False) -> EngineState:
        return await self.client.state(flush_cache=flush_cache)

    @property
    def requests_read(self) -> Iterator[RequestId]:
        """Those whose end was delivered."""
        return (stream.request for stream in self.streams if stream.is_ended)

    def outputs(self) -> dict[Asked, Tokens]:
        return {stream.asked: stream.tokens for stream in self.streams}

    @property
    def opened(self) -> list[RequestStream]:
        """All that the scenario opened, of either kind."""
        return [*(stream.stream for stream in self.streams), *self.questions]

    def note_open(self) -> None:
        """To be called when the scenario's scope is left, before anything else can run."""
        still_open = [stream.request for stream in self.opened if not stream.is_over]
        if still_open:
            self.broken.append(f"C2: requests {still_open} are open although the scope that opened them is left")


def emissions_owed(engines: list[ObservedEngine]) -> int:
    """Submits, questions and aborts that the scenarios of one API process owe to its text workers by now."""
    streams = [stream for engine in engines for stream in engine.opened]
    return len(streams) + sum(stream.was_left for stream in streams)


def emissions_waiting(engines: list[ObservedEngine]) -> int:
    """Those that wait in an outbox."""
    connections: set[TextConnection] = {stream.connection for engine in engines for stream in engine.opened}
    return sum(connection.outbox.pending for connection in connections)


def broken_promises(state: EngineState) -> Iterator[str]:
    """What an engine without open requests does not keep of the cancellation contract, one sentence each; none is right."""
    if state.silent:
        yield f"no answer from {', '.join(state.silent)}"
    for report in state.reports:
        name = f"{report.role.value} {report.index}"
        yield from (f"{name}: {violation}" for violation in report.violations)
        if report.open_requests:
            yield f"C7: {name} holds {report.open_requests} requests"
        yield from (f"C7: {name}: {size} entries are left in {table}" for table, size in report.maps if size)
    if not is_quiescent(state):
        yield f"C7: not quiescent: {_scheduler_gauges(state)}"
    emitted, handled, late, lost = (_total(state, counter) for counter in _COMPARED)
    if emitted != handled + late + lost:
        yield f"C3: {emitted:g} aborts were emitted, {handled:g} handled, {late:g} late, {lost:g} lost"


def _total(state: EngineState, counter: Metric) -> float:
    measured = (each for report in state.reports for each in report.metrics if each.metric == counter)
    return sum(value for each in measured for _, value in each.samples)


def _scheduler_gauges(state: EngineState) -> dict[str, int]:
    return {name: value for report in state.reports if report.role is Role.SCHEDULER for name, value in report.gauges}
