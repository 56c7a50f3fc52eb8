"""A scriptable engine behind the HTTP layer's Protocol: tests decide every verdict and every event."""

import contextlib
from collections import deque
from collections.abc import Callable

import attrs
import trio

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.api_text import (
    Accepted,
    DescribeTokenizer,
    Detokenize,
    Detokenized,
    Rejected,
    TextAnswer,
    TextQuestion,
    Tokenize,
    Tokenized,
    TokenizerDescribed,
)
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import EnginePhase, EngineState, EngineStatus, RequestFate
from layered_llm.domain.placement import ANYWHERE, Placement
from layered_llm.domain.ports.engine import EngineLost, RequestAborted, RequestSummary
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import Backlog, ChoiceDelta, RequestEnded, SampledLogprob, StreamEvent, Usage
from layered_llm.domain.verdicts import RejectReason

FIRST_REQUEST = 0x1234_0000_0000
READY = EngineStatus(
    phase=EnginePhase.READY,
    generation=1,
    supervisor_pid=1,
    detail="ready",
    limits=EngineLimits(context_tokens=2048, vocabulary_size=100),
)


def text_delta(
    text: str,
    *,
    choice: int = 0,
    token_ids: tuple[int, ...] = (7,),
    finish_reason: FinishReason = FinishReason.RUNNING,
    matched_stop: str | int | None = None,
    logprobs: tuple[SampledLogprob, ...] = (),
    prompt_logprobs: tuple[SampledLogprob, ...] = (),
) -> ChoiceDelta:
    return ChoiceDelta(
        choice=choice,
        text=text,
        token_ids=token_ids,
        finish_reason=finish_reason,
        matched_stop=matched_stop,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def ended(
    *, prompt_tokens: int = 3, completion_tokens: int = 2, cached_tokens: int = 1, error: str | None = None
) -> RequestEnded:
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cached_tokens=cached_tokens)
    return RequestEnded(usage=usage, error=error)


@attrs.define(eq=False)
class FakeStream:
    """One open request; `aborts` has one entry when it was left before its end."""

    request: RequestId
    prompt: Prompt
    params: SamplingParams
    placement: Placement
    aborts: list[AbortReason] = attrs.field(init=False, factory=list)
    closes: int = attrs.field(init=False, default=0)
    is_over: bool = attrs.field(init=False, default=False)
    tokens: int = attrs.field(init=False, default=0)
    first_token_s: float | None = attrs.field(init=False, default=None)
    _verdict: Accepted | Rejected | Exception | None = attrs.field(init=False, default=None)
    _events: deque[StreamEvent | Exception] = attrs.field(init=False, factory=deque)
    _changed: trio.Event = attrs.field(init=False, factory=trio.Event)
    name: str | None = attrs.field(init=False, default=None)
    body: RequestId = attrs.field(init=False, default=attrs.Factory(lambda self: self.request, takes_self=True))
    closed: trio.Event = attrs.field(init=False, factory=trio.Event)
    backlog: Backlog | None = attrs.field(init=False, default=None)

    def accept(self, prompt_tokens: int = 3) -> None:
        prompt_ids = pack_i32(range(prompt_tokens)) if self.params.tells_prompt_ids else b""
        self._decide(Accepted(request=self.request, prompt_tokens=prompt_tokens, prompt_ids=prompt_ids))

    def reject(self, reason: RejectReason, message: str = "no", param: str | None = None) -> None:
        self.is_over = True
        self._decide(Rejected(request=self.request, reason=reason, message=message, param=param))

    def lose(self, why: type[EngineLost] = EngineLost) -> None:
        """The engine dies."""
        self._verdict = self._verdict or why()
        self.emit_error(why())

    def emit(self, *events: StreamEvent) -> None:
        self._events.extend(events)
        self._wake()

    def emit_error(self, error: Exception) -> None:
        self._events.append(error)
        self._wake()

    async def verdict(self) -> Accepted | Rejected:
        while self._verdict is None:
            await self._changed.wait()
        if isinstance(self._verdict, Exception):
            raise self._verdict
        return self._verdict

    async def receive(self) -> tuple[StreamEvent, ...]:
        await trio.lowlevel.checkpoint()
        while not self._events:
            await self._changed.wait()
        taken: list[StreamEvent] = []
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Exception):
                if not taken:
                    raise event
                self._events.appendleft(event)
                break
            taken.append(event)
            if isinstance(event, ChoiceDelta):
                self.tokens += len(event.token_ids)
                self.first_token_s = trio.current_time() if self.first_token_s is None else self.first_token_s
            self.is_over = isinstance(event, RequestEnded)
        return tuple(taken)

    def bound(self, backlog: Backlog) -> None:
        self.backlog = backlog

    def summary(self) -> RequestSummary:
        accepted = self._verdict
        fate = RequestFate(reason=self.aborts[0].name.lower() if self.aborts else "stop")
        return RequestSummary(
            prompt_tokens=accepted.prompt_tokens if isinstance(accepted, Accepted) else 0,
            completion_tokens=self.tokens,
            first_token_s=self.first_token_s,
            name=self.name,
            fate=fate if self.is_over else None,
        )

    def join(self, first: RequestId) -> None:
        self.body = first

    def call(self, name: str) -> None:
        self.name = name

    def close(self, reason: AbortReason) -> None:
        self.closes += 1
        self.closed.set()
        if not self.is_over:
            self.is_over = True
            self.aborts.append(reason)
            # As the engine client does it: whoever waits for a request that was left is woken, and told that nothing comes.
            self.lose(RequestAborted if reason is AbortReason.ADMINISTRATIVE else EngineLost)

    def _decide(self, verdict: Accepted | Rejected) -> None:
        self._verdict = verdict
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@attrs.define(eq=False)
class FakeQuestion:
    """One open question; `aborts` has one entry when it was left before its answer."""

    question: TextQuestion
    aborts: list[AbortReason] = attrs.field(init=False, factory=list)
    _answer: TextAnswer | Rejected | Exception | None = attrs.field(init=False, default=None)
    _answered: trio.Event = attrs.field(init=False, factory=trio.Event)

    def tell(self, answer: TextAnswer | Rejected | Exception) -> None:
        if self._answer is None:
            self._answer = answer
            self._answered.set()

    async def answer(self) -> TextAnswer | Rejected:
        await self._answered.wait()
        if isinstance(self._answer, TextAnswer | Rejected):
            return self._answer
        raise self._answer or EngineLost

    def close(self, reason: AbortReason) -> None:
        if self._answer is None:
            self.aborts.append(reason)
            self.tell(EngineLost())


Script = Callable[[FakeStream], None]
Answerer = Callable[[TextQuestion], TextAnswer | Rejected | Exception | None]
"""None leaves the question open."""


@attrs.define(eq=False)
class FakeEngine:
    """Every opened stream is kept in `streams`; `script` is run on each as it is opened."""

    script: Script | None = None
    current: EngineStatus = READY
    full: bool = False
    reported: EngineState = attrs.field(factory=lambda: EngineState(query=1, reports=(), silent=()))
    answerer: Answerer | None = None
    streams: list[FakeStream] = attrs.field(init=False, factory=list)
    questions: list[FakeQuestion] = attrs.field(init=False, factory=list)
    is_abort_unanswered: bool = False
    flushes: int = attrs.field(init=False, default=0)
    _opened: trio.Event = attrs.field(init=False, factory=trio.Event)

    @property
    def aborts(self) -> list[AbortReason]:
        return [reason for stream in self.streams for reason in stream.aborts]

    def status(self) -> EngineStatus:
        return self.current

    def open(
        self, owner: contextlib.ExitStack, prompt: Prompt, params: SamplingParams, placement: Placement = ANYWHERE
    ) -> FakeStream | Rejected:
        request = RequestId(FIRST_REQUEST + len(self.streams))
        if self.full:
            return Rejected(request=request, reason=RejectReason.QUEUE_FULL, message="64 requests are open already")
        stream = FakeStream(request, prompt, params, placement)
        owner.callback(stream.close, AbortReason.CLIENT_GONE)
        self.streams.append(stream)
        if self.script is not None:
            self.script(stream)
        self._opened.set()
        self._opened = trio.Event()
        return stream

    def ask(
        self, owner: contextlib.ExitStack, question: Callable[[RequestId], TextQuestion], tenant: str = ""
    ) -> FakeQuestion | Rejected:
        request = RequestId(FIRST_REQUEST + 1000 + len(self.questions))
        if self.full:
            return Rejected(request=request, reason=RejectReason.QUEUE_FULL, message="64 requests are open already")
        asked = FakeQuestion(question(request))
        owner.callback(asked.close, AbortReason.CLIENT_GONE)
        self.questions.append(asked)
        answer = None if self.answerer is None else self.answerer(asked.question)
        if answer is not None:
            asked.tell(answer)
        return asked

    async def abort(self, request: RequestId | None, tenant: str | None = "", names: tuple[str, ...] = ()) -> int:
        await trio.lowlevel.checkpoint()
        if self.is_abort_unanswered:
            raise EngineLost
        own = [stream for stream in self.streams if not stream.is_over and tenant in {None, stream.placement.tenant}]
        is_for_all = request is None and not names
        named = [stream for stream in own if is_for_all or request == stream.body or stream.name in names]
        for stream in named:
            stream.close(AbortReason.ADMINISTRATIVE)
        return len(named)

    async def find(self, request: RequestId | None, tenant: str | None = "", names: tuple[str, ...] = ()) -> RequestFate | None:
        await trio.lowlevel.checkpoint()
        if self.is_abort_unanswered:
            raise EngineLost
        own = [stream for stream in self.streams if tenant in {None, stream.placement.tenant}]
        named = [stream for stream in own if request == stream.body or stream.name in names]
        if not named:
            return None
        return RequestFate(is_open=True) if not named[-1].is_over else RequestFate(reason="stop")

    async def state(self, *, flush_cache: bool = False) -> EngineState:
        await trio.lowlevel.checkpoint()
        self.flushes += flush_cache
        return self.reported

    async def wait_opened(self, count: int = 1) -> FakeStream:
        """The `count`-th stream, as soon as it is open."""
        while len(self.streams) < count:
            await self._opened.wait()
        return self.streams[count - 1]


def answering(*events: StreamEvent) -> Script:
    """Accepts each request and emits `events`."""

    def script(stream: FakeStream) -> None:
        stream.accept()
        stream.emit(*events)

    return script


def accepting(stream: FakeStream) -> None:
    """Accepts a request and says nothing more."""
    stream.accept()


def telling(question: TextQuestion) -> TextAnswer:
    """Answers each question: there are two tokens, whose text is "a bé"."""
    match question:
        case Tokenize(request=request, with_spellings=with_spellings):
            return Tokenized(request=request, token_ids=pack_i32([5, 6]), spellings=("a", "Ġb") if with_spellings else None)
        case Detokenize(request=request):
            return Detokenized(request=request, text="a bé")
        case DescribeTokenizer(request=request):
            return TokenizerDescribed(request=request, config='{"eos_token": "</s>", "chat_template": null}')
