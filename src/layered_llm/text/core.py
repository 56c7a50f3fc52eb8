"""The text core: requests in, admissions out; tokens in, text out. Synchronous, and the only writer of its state.

Must not know: sockets, threads, clocks, pages, how a preparation is run.

Invariants (recomputed by `check`): a request is in one map at most; the API gets one verdict on it and, after Accepted,
one end of each choice and then one end of the request; a request that was admitted is forgotten when the scheduler has finished
each of its choices, any other at once; nothing is sent about a request whose API left it.
"""

from collections import defaultdict
from typing import Final, assert_never

import attrs

from layered_llm.domain.columns import rows, unpack_i8, unpack_i32, unpack_i64
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import ApiId, PathId, RequestId, api_of, path_parts
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
    Tokenized,
    TokenizerDescribed,
)
from layered_llm.domain.messages.logprobs import NO_ENTRIES, each_row
from layered_llm.domain.messages.text_scheduler import (
    AbortRequest,
    Queued,
    Refused,
    RequestsFinished,
    SchedulerToText,
    StepsTaken,
    StopChoice,
    TextToScheduler,
    TokensEmitted,
)
from layered_llm.domain.verdicts import RejectReason
from layered_llm.text.checkpoint_text import TextFiles
from layered_llm.text.emission import Outgoing, TextRows
from layered_llm.text.open_request import OpenRequest, open_request
from layered_llm.text.preparation import Preparation, Prepared
from layered_llm.text.prompt_tokens import PromptReader
from layered_llm.text.questions import Answering
from layered_llm.text.refusals import FAILURES, FELL_BEHIND, fell_behind, refusal_sentence
from layered_llm.text.text_statistics import Counters, TextStatistics, summarize
from layered_llm.text.tokenizer import TokenIds

__all__ = ["Outcome", "Outgoing", "Preparation", "Prepared", "TextCore", "Work"]

Work = Preparation | Answering
"""What a message asks for before anything is decided about it; pure, and maybe long."""
Outcome = Prepared | TextAnswer | Rejected
"""What the work came to."""
_Tables = defaultdict[PathId, TextRows]
"""What each API process gets, for each incarnation of requests."""

MOST_DEAD_APIS: Final = 256
"""So many that died last are remembered."""


class TextCore:
    """Everything that a text worker decides. The shell moves messages and runs preparations."""

    def __init__(self, *, text_files: TextFiles, limits: EngineLimits) -> None:
        self._tokenizer = text_files.tokenizer
        self._token_ids = TokenIds.of(self._tokenizer, model_size=limits.vocabulary_size)
        # A checkpoint may list ends that its logits do not reach, or no token has: they can never be sampled.
        eos_ids = frozenset(filter(self._token_ids.has, text_files.eos_ids))
        self._fixed = (attrs.evolve(text_files, eos_ids=eos_ids), limits)
        self._preparing: dict[RequestId, int] = {}
        """Their incarnations."""
        self._admitted: dict[RequestId, OpenRequest] = {}
        self._dead_apis: dict[ApiId, None] = {}  # the word of a death may overtake what the dead one sent
        self._counters = Counters()

    def submit(self, message: Submit) -> Preparation:
        """Registers the request, so that an abort finds it, and returns the work to do before `prepared`.

        Raises InvariantViolated for an id that is open.
        """
        self._open(message.request, message.incarnation)
        reader = PromptReader(message.request, *self._fixed, incarnation=message.incarnation)
        return Preparation(
            request=message.request,
            tenant=message.placement.tenant,
            conversation=reader.conversation(message.prompt),
            message=message,
            reader=reader,
            token_ids=self._token_ids,
        )

    def ask(self, question: TextQuestion) -> Answering:
        """The same for a question, which `prepared` ends."""
        self._open(question.request, 0)
        return Answering.of(question, PromptReader(question.request, *self._fixed))

    def is_wanted(self, request: RequestId, incarnation: int) -> bool:
        """Whether somebody still waits for what the work for this incarnation of `request` comes to."""
        return self._preparing.get(request) == incarnation

    def prepared(self, request: RequestId, outcome: Outcome) -> Outgoing:
        """Takes what the work for `request` came to; it is dropped when the request was left meanwhile."""
        incarnation = 0 if isinstance(outcome, TextAnswer) else outcome.incarnation
        if self._preparing.get(request) != incarnation:
            return Outgoing()
        del self._preparing[request]
        match outcome:
            case Rejected():
                return self._reject(outcome)
            case Tokenized() | Detokenized() | TokenizerDescribed():
                self._counters.questions_answered += 1
                return Outgoing(to_api=((api_of(request), outcome),))
            case Prepared(admit=admit):
                self._admitted[request] = open_request(outcome, self._tokenizer)
                return Outgoing(to_scheduler=(admit,))
            case _:
                assert_never(outcome)

    def abort(self, message: Abort) -> Outgoing:
        """The API left the request: it hears nothing more of it. A request that is not open any more is only counted."""
        self._counters.aborts_taken[api_of(message.request)] += 1
        if self._preparing.get(message.request) == message.incarnation:
            self._drop(message.request)
            self._counters.aborts_handled += 1
            return Outgoing()
        request = self._admitted.get(message.request)
        if request is None or request.incarnation != message.incarnation or request.is_silent or not request.unended_choices:
            self._counters.aborts_late += 1
            return Outgoing()
        request.is_silent = True
        self._counters.aborts_forwarded += 1
        return Outgoing(to_scheduler=(AbortRequest(request=message.request, reason=message.reason),))

    def api_gone(self, api: ApiId, reason: AbortReason) -> Outgoing:
        """Ends all requests of an API process.

        With PEER_DIED nothing is sent to it, and what it may have submitted before and arrives later is dropped. With any other
        reason `to_api` holds the verdict or the end of each request, for when it takes messages again.
        """
        unprepared = {request: self._preparing[request] for request in sorted(self._preparing) if api_of(request) == api}
        for request_id in unprepared:
            self._drop(request_id)
        gone = self._open_requests_of(api)
        for request in gone:
            request.is_silent = True
        self._counters.aborts_own += len(gone)
        orders = tuple(AbortRequest(request=request.request, reason=reason) for request in gone)
        if reason is AbortReason.PEER_DIED:
            self._bury(api)
            return Outgoing(to_scheduler=orders)
        unanswered = unprepared | {request.request: request.incarnation for request in gone if not request.is_queued}
        tables: _Tables = defaultdict(TextRows)
        for request in gone:
            if request.is_queued:
                self._end_all(request, tables)
        verdicts = [(api, fell_behind(request_id, incarnation)) for request_id, incarnation in unanswered.items()]
        return Outgoing(to_scheduler=orders, to_api=(*verdicts, *self._messages(tables)))

    def from_scheduler(self, message: SchedulerToText) -> Outgoing:
        """Raises InvariantViolated for what does not fit what came before: then our own scheduler or we are wrong."""
        match message:
            case Queued():
                return self._queued(message)
            case Refused():
                return self._refused(message)
            case TokensEmitted():
                return self._tokens(message)
            case RequestsFinished():
                return self._finished(message)
            case _:
                assert_never(message)

    def statistics(self) -> TextStatistics:
        return summarize(self._counters, preparing=len(self._preparing), admitted=len(self._admitted), gone=self._dead_apis)

    def check(self) -> tuple[str, ...]:
        """What is broken, one sentence each; empty is right."""
        counters = self._counters
        broken = [f"request {request} is both prepared and admitted" for request in self._preparing.keys() & self._admitted]
        for request in self._admitted.values():
            if not request.unconfirmed_choices:
                broken.append(f"request {request.request} is kept although the scheduler finished it")
            unended = [choice for choice in request.choices if not choice.has_ended]
            unconfirmed = [choice for choice in request.choices if not choice.is_confirmed]
            if (len(unended), len(unconfirmed)) != (request.unended_choices, request.unconfirmed_choices):
                broken.append(f"request {request.request} counts its choices wrongly")
            if any(choice.is_confirmed and not choice.has_ended for choice in request.choices) and not request.is_silent:
                broken.append(f"request {request.request} has a choice whose end was not sent")
        ended = counters.requests_confirmed + counters.questions_answered
        gone = sum(counters.rejected.values()) + counters.requests_dropped + ended
        if counters.requests_submitted != len(self._preparing) + len(self._admitted) + gone:
            broken.append(
                f"{counters.requests_submitted} requests were submitted, {gone} of them are gone, the rest is not open"
            )
        return tuple(broken)

    def _open(self, request: RequestId, incarnation: int) -> None:
        if request in self._preparing or request in self._admitted:
            raise InvariantViolated(f"request {request} is submitted while it is open")
        self._counters.requests_submitted += 1
        if api_of(request) in self._dead_apis:
            self._counters.requests_dropped += 1
        else:
            self._preparing[request] = incarnation

    def _bury(self, api: ApiId) -> None:
        """What a process sent before its death has come long before so many others died."""
        self._dead_apis[api] = None
        if len(self._dead_apis) > MOST_DEAD_APIS:
            oldest = next(iter(self._dead_apis))
            del self._dead_apis[oldest]
            self._counters.aborts_of_forgotten += self._counters.aborts_taken.pop(oldest, 0)

    def _drop(self, request: RequestId) -> None:
        del self._preparing[request]
        self._counters.requests_dropped += 1

    def _reject(self, verdict: Rejected) -> Outgoing:
        self._counters.rejected[verdict.reason] += 1
        return Outgoing(to_api=((api_of(verdict.request), verdict),))

    def _open_requests_of(self, api: ApiId) -> list[OpenRequest]:
        """Those that the API still expects something of."""
        return [
            request
            for request in self._admitted.values()
            if api_of(request.request) == api and not request.is_silent and request.unended_choices
        ]

    def _queued(self, message: Queued) -> Outgoing:
        request = self._unanswered(message.request)
        request.is_queued = True
        if request.is_silent:
            return Outgoing()
        self._counters.requests_accepted += 1
        self._counters.prompt_tokens += request.prompt_tokens
        accepted = Accepted(
            request=message.request,
            prompt_tokens=request.prompt_tokens,
            prompt_ids=request.shown_prompt_ids,
            incarnation=request.incarnation,
        )
        return Outgoing(to_api=((api_of(message.request), accepted),))

    def _refused(self, message: Refused) -> Outgoing:
        request = self._unanswered(message.request)
        del self._admitted[message.request]
        reason, sentence = RejectReason(message.reason), refusal_sentence(message)
        rejected = Rejected(request=message.request, reason=reason, message=sentence, incarnation=request.incarnation)
        verdict = self._reject(rejected)
        return Outgoing() if request.is_silent else verdict

    def _unanswered(self, request_id: RequestId) -> OpenRequest:
        request = self._known(request_id)
        if request.is_queued:
            raise InvariantViolated(f"request {request_id} is answered twice")
        return request

    def _known(self, request_id: int) -> OpenRequest:
        """The scheduler finishes each choice once and says nothing after it, so an unknown request is our own fault."""
        request = self._admitted.get(RequestId(request_id))
        if request is None:
            raise InvariantViolated(f"the scheduler speaks of request {request_id}, which is not open")
        return request

    def _tokens(self, message: TokensEmitted) -> Outgoing:
        tables: _Tables = defaultdict(TextRows)
        orders: list[TextToScheduler] = []
        row_count = rows("i", message.token_ids)
        columns = zip(
            unpack_i64(message.requests),
            unpack_i32(message.choices),
            unpack_i32(message.positions),
            unpack_i32(message.token_ids),
            unpack_i32(message.cached_tokens),
            each_row(message.logprobs, row_count, NO_ENTRIES),
            each_row(message.prompt_logprobs, row_count, None),
            strict=True,
        )
        for request_id, index, position, token, cached_tokens, logprobs, prompt in columns:
            request = self._known(request_id)
            choice = request.receive(index, position, cached_tokens)
            if choice.has_ended or request.is_silent:
                continue
            if position == 0 and (request.echo or prompt is not None):
                tables[request.path].prompt(request.request, index, request.echo, prompt, request.echo_offsets)
            if request.is_prompt_only:
                continue
            state = choice.text
            text = state.push(token)
            tables[request.path].token(request.request, index, token, text, logprobs=logprobs, offset=state.offset)
            if state.matched_string is not None:
                orders.append(StopChoice(request=request.request, choice=index, output_tokens=state.tokens))
                self._end_choice(request, index, tables, FinishReason.STOP, text="")
        self._counters.steps_taken += 1
        return Outgoing(to_scheduler=(*orders, StepsTaken(step=message.step)), to_api=self._messages(tables))

    def _finished(self, message: RequestsFinished) -> Outgoing:
        tables: _Tables = defaultdict(TextRows)
        columns = zip(
            unpack_i64(message.requests),
            unpack_i32(message.choices),
            unpack_i8(message.reasons),
            unpack_i32(message.output_tokens),
            strict=True,
        )
        for request_id, index, code, output_tokens in columns:
            request, reason = self._known(request_id), FinishReason(code)
            choice = request.confirm(index, reason, output_tokens)
            if not choice.has_ended and not request.is_silent:
                request.error = FAILURES.get(reason, request.error)
                self._end_choice(request, index, tables, reason, text=choice.text.finish())
            if not request.unconfirmed_choices:
                del self._admitted[request.request]
                self._counters.requests_confirmed += 1
        return Outgoing(to_api=self._messages(tables))

    def _end_choice(self, request: OpenRequest, index: int, tables: _Tables, reason: FinishReason, *, text: str) -> None:
        """The end of a choice, and with the last one that of the request.

        A stop string, if complete, has the last word over the scheduler's reason.
        """
        choice = request.end(index)
        matched: str | int | None = None
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and choice.text.matched_string is not None:
            reason, matched = FinishReason.STOP, choice.text.matched_string
            self._counters.stop_strings_matched += 1
        elif reason is FinishReason.STOP:
            matched = choice.text.matched_token
        table = tables[request.path]
        table.finish(request.request, index, text=text, reason=reason, matched_stop=matched)
        self._counters.finished[reason] += 1
        self._counters.generation_tokens += choice.text.tokens
        if not request.unended_choices:
            table.end(
                request.request,
                prompt_tokens=request.prompt_tokens,
                completion_tokens=request.completion_tokens,
                cached_tokens=request.cached_tokens or 0,
                error=request.error,
            )

    def _end_all(self, request: OpenRequest, tables: _Tables) -> None:
        request.error = FELL_BEHIND
        for index, choice in enumerate(request.choices):
            if not choice.has_ended:
                self._end_choice(request, index, tables, FinishReason.ABORT, text="")

    def _messages(self, tables: _Tables) -> tuple[tuple[ApiId, TextEmitted], ...]:
        messages: list[tuple[ApiId, TextEmitted]] = []
        for path, table in tables.items():
            api, incarnation = path_parts(path)
            messages.append((api, table.message(self._tokenizer.token_bytes, incarnation)))
        return tuple(messages)
