"""A text core between a fake scheduler and an API's view of what it is told."""

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64, unpack_i8, unpack_i32, unpack_i64
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import ApiId, RequestId, StepId, compose_request_id
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.api_text import (
    Abort,
    Accepted,
    Detokenized,
    Rejected,
    Submit,
    TextAnswer,
    TextEmitted,
    TextQuestion,
    TextToApi,
    Tokenized,
    TokenizerDescribed,
)
from layered_llm.domain.messages.logprobs import LogprobColumns, PromptLogprobs
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.text_scheduler import (
    AbortRequest,
    Admit,
    Queued,
    RequestsFinished,
    SchedulerToText,
    StepsTaken,
    StopChoice,
    TextToScheduler,
    TokensEmitted,
)
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import Usage
from layered_llm.text.chat_template import ChatTemplate
from layered_llm.text.checkpoint_text import TextFiles
from layered_llm.text.core import Outgoing, Preparation, TextCore
from layered_llm.text.questions import Answering
from layered_llm.text.tokenizer import Tokenizer
from support.logprobs import columns_of
from support.text_tokenizers import EOS, byte_level

API = ApiId(7)
OTHER_API = ApiId(8)
LIMITS = EngineLimits(context_tokens=100, vocabulary_size=1000)
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"


def files(tokenizer: Tokenizer, *, template: str | None = TEMPLATE, eos_ids: Iterable[int] | None = None) -> TextFiles:
    eos = tokenizer.id_of(EOS)
    return TextFiles(
        tokenizer=tokenizer,
        template=None if template is None else ChatTemplate(template, variables={}, clock=lambda: dt.datetime(2025, 1, 1)),
        eos_ids=frozenset(eos_ids if eos_ids is not None else [eos] if eos is not None else []),
    )


def tokens_emitted(
    rows: Iterable[tuple[RequestId, int, int, int]],
    *,
    step: int = 1,
    cached: int = 0,
    logprobs: Iterable[Sequence[tuple[int, float]]] | None = None,
    prompts: Iterable[LogprobColumns | None] = (),
) -> TokensEmitted:
    """Rows of (request, choice, position, token); `cached` is told with position 0; (token, logprob) pairs of each row."""
    table = list(rows)
    return TokensEmitted(
        step=StepId(step),
        requests=pack_i64(row[0] for row in table),
        choices=pack_i32(row[1] for row in table),
        positions=pack_i32(row[2] for row in table),
        token_ids=pack_i32(row[3] for row in table),
        cached_tokens=pack_i32(-1 if row[2] else cached for row in table),
        logprobs=None if logprobs is None else columns_of(logprobs),
        prompt_logprobs=PromptLogprobs.of(list(prompts)),
    )


def requests_finished(rows: Iterable[tuple[RequestId, int, FinishReason, int]]) -> RequestsFinished:
    """Rows of (request, choice, reason, output tokens)."""
    table = list(rows)
    return RequestsFinished(
        requests=pack_i64(row[0] for row in table),
        choices=pack_i32(row[1] for row in table),
        reasons=pack_i8(row[2] for row in table),
        output_tokens=pack_i32(row[3] for row in table),
    )


@attrs.define
class ChoiceView:
    """What the API was told of one choice."""

    pushes: list[str] = attrs.field(factory=list)
    token_ids: list[int] = attrs.field(factory=list)
    reason: FinishReason = FinishReason.RUNNING
    matched_stop: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(self.pushes)


@attrs.define
class RequestView:
    """What the API was told of one request. Fails at once for anything that the link's contract forbids."""

    choices: list[ChoiceView]
    verdict: Accepted | Rejected | None = None
    usage: Usage | None = None
    error: str | None = None

    @property
    def only(self) -> ChoiceView:
        (choice,) = self.choices
        return choice

    def tell_verdict(self, verdict: Accepted | Rejected) -> None:
        assert self.verdict is None, "two verdicts"
        self.verdict = verdict

    def tell_row(
        self, choice: int, text: str, token_ids: Sequence[int], reason: FinishReason, matched_stop: str | int | None
    ) -> None:
        assert isinstance(self.verdict, Accepted), "a row before Accepted"
        view = self.choices[choice]
        assert view.reason is FinishReason.RUNNING, "a row behind the last one"
        view.pushes.append(text)
        view.token_ids.extend(token_ids)
        view.reason, view.matched_stop = reason, matched_stop

    def tell_end(self, usage: Usage, error: str | None) -> None:
        assert self.usage is None, "ended twice"
        assert all(choice.reason is not FinishReason.RUNNING for choice in self.choices), "ended before its choices"
        self.usage, self.error = usage, error


@attrs.define
class CoreBench:
    """A core, the log of what it orders the scheduler, and a view for each request."""

    core: TextCore
    orders: list[TextToScheduler] = attrs.field(factory=list)
    views: dict[RequestId, RequestView] = attrs.field(factory=dict)
    emitted: list[TextEmitted] = attrs.field(factory=list)
    answers: list[TextAnswer] = attrs.field(factory=list)
    _counter: int = 0
    _step: int = 0

    @classmethod
    def of(cls, text_files: TextFiles | None = None, limits: EngineLimits = LIMITS) -> "CoreBench":
        return cls(TextCore(text_files=text_files or files(byte_level()), limits=limits))

    def begin(
        self,
        prompt: Prompt,
        *,
        api: ApiId = API,
        output_ids: tuple[bytes, ...] = (),
        incarnation: int = 0,
        **params: Any,
    ) -> Preparation:
        """Submits a request and leaves it there."""
        self._counter += 1
        request = compose_request_id(api, self._counter)
        sampling, seed = SamplingParams(**params), params.get("seed", 1)
        submit = Submit(
            request=request, prompt=prompt, params=sampling, seed=seed, output_ids=output_ids, incarnation=incarnation
        )
        self.views[request] = RequestView([ChoiceView() for _ in range(submit.params.n)])
        return self.core.submit(submit)

    def ask(self, question: Callable[[RequestId], TextQuestion], *, api: ApiId = API) -> Answering:
        """Asks a question and leaves it there."""
        self._counter += 1
        request = compose_request_id(api, self._counter)
        self.views[request] = RequestView([])
        return self.core.ask(question(request))

    def answer(self, question: Callable[[RequestId], TextQuestion]) -> TextAnswer | Rejected:
        """Asks a question; what it comes to."""
        answering = self.ask(question)
        self.take(self.core.prepared(answering.request, answering.run()))
        verdict = self.views[answering.request].verdict
        return verdict if isinstance(verdict, Rejected) else self.answers[-1]

    def admit(self, prompt: Prompt | None = None, *, api: ApiId = API, **params: Any) -> RequestId:
        """Submits a request and prepares it."""
        preparation = self.begin(prompt or Prompt.of_text("hello"), api=api, **params)
        self.take(self.core.prepared(preparation.request, preparation.run()))
        return preparation.request

    def open(self, prompt: Prompt | None = None, *, api: ApiId = API, **params: Any) -> RequestId:
        """Submits, prepares and queues a request."""
        request = self.admit(prompt, api=api, **params)
        self.hear(Queued(request=request))
        return request

    def tokens(
        self,
        *rows: tuple[RequestId, int, int, int],
        cached: int = 0,
        logprobs: Iterable[Sequence[tuple[int, float]]] | None = None,
        prompts: Iterable[LogprobColumns | None] = (),
    ) -> None:
        self._step += 1
        self.hear(tokens_emitted(rows, step=self._step, cached=cached, logprobs=logprobs, prompts=prompts))

    def finish(self, *rows: tuple[RequestId, int, FinishReason, int]) -> None:
        self.hear(requests_finished(rows))

    def stream(self, request: RequestId, token_ids: Sequence[int], *, choice: int = 0, start: int = 0) -> None:
        """One token a step."""
        for position, token in enumerate(token_ids, start):
            self.tokens((request, choice, position, token))

    def hear(self, message: SchedulerToText) -> Outgoing:
        return self.take(self.core.from_scheduler(message))

    def abort(self, request: RequestId, *, incarnation: int = 0) -> None:
        self.take(self.core.abort(Abort(request=request, reason=AbortReason.CLIENT_GONE, incarnation=incarnation)))

    def take(self, outgoing: Outgoing) -> Outgoing:
        assert () == self.core.check()
        self.orders.extend(outgoing.to_scheduler)
        for api, message in outgoing.to_api:
            self._deliver(api, message)
        return outgoing

    @property
    def admits(self) -> list[Admit]:
        return [order for order in self.orders if isinstance(order, Admit)]

    @property
    def stops(self) -> list[StopChoice]:
        return [order for order in self.orders if isinstance(order, StopChoice)]

    @property
    def aborts(self) -> list[AbortRequest]:
        return [order for order in self.orders if isinstance(order, AbortRequest)]

    @property
    def credits(self) -> list[int]:
        return [order.step for order in self.orders if isinstance(order, StepsTaken)]

    def assert_quiescent(self) -> None:
        statistics = self.core.statistics()
        assert (0, {"preparing": 0, "admitted": 0}) == (statistics.open_requests, dict(statistics.maps))
        assert () == self.core.check()

    def _deliver(self, api: ApiId, message: TextToApi) -> None:
        if isinstance(message, Tokenized | Detokenized | TokenizerDescribed):
            assert api == message.request >> 32
            self.answers.append(message)
            return
        if not isinstance(message, TextEmitted):
            assert api == message.request >> 32
            self.views[message.request].tell_verdict(message)
            return
        self.emitted.append(message)
        ids, place = unpack_i32(message.token_ids), 0
        columns = zip(
            unpack_i64(message.requests),
            unpack_i32(message.choices),
            message.texts,
            unpack_i32(message.token_counts),
            unpack_i8(message.finish_reasons),
            message.matched_stops,
            strict=True,
        )
        for request, choice, text, count, reason, matched in columns:
            assert api == request >> 32
            self.views[RequestId(request)].tell_row(choice, text, ids[place : place + count], FinishReason(reason), matched)
            place += count
        assert place == len(ids)
        ended = zip(
            unpack_i64(message.ended),
            unpack_i32(message.ended_prompt_tokens),
            unpack_i32(message.ended_completion_tokens),
            unpack_i32(message.ended_cached_tokens),
            message.ended_errors,
            strict=True,
        )
        for request, prompt, completion, cached, error in ended:
            usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
            self.views[RequestId(request)].tell_end(usage, error)
