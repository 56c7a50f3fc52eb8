"""What the scheduler says to text workers, gathered into one message of each kind for each worker.

Must not know: who runs, why a choice ended.
"""

from collections.abc import Iterator

import attrs

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import RequestId, StepId, TextId
from layered_llm.domain.messages.logprobs import LogprobColumns, LogprobEntries, PromptLogprobs
from layered_llm.domain.messages.text_scheduler import RequestsFinished, SchedulerToText, TokensEmitted
from layered_llm.scheduling.sequences import Sequence, TextWorker


@attrs.frozen
class Outgoing:
    """A message and the text worker that it is for."""

    worker: TextId
    message: SchedulerToText


@attrs.define(eq=False)
class TokenRows:
    """Rows of one TokensEmitted."""

    _requests: list[RequestId] = attrs.field(init=False, factory=list)
    _choices: list[int] = attrs.field(init=False, factory=list)
    _positions: list[int] = attrs.field(init=False, factory=list)
    _token_ids: list[int] = attrs.field(init=False, factory=list)
    _cached_tokens: list[int] = attrs.field(init=False, factory=list)
    _logprobs: list[LogprobEntries] = attrs.field(init=False, factory=list)
    _prompts: list[LogprobColumns | None] = attrs.field(init=False, factory=list)

    def add(self, sequence: Sequence, token: int, logprobs: LogprobEntries) -> None:
        """`token` stands at the end of the output of `sequence`."""
        self._requests.append(sequence.admit.request)
        self._choices.append(sequence.choice)
        self._positions.append(sequence.output_tokens - 1)
        self._token_ids.append(token)
        self._logprobs.append(logprobs)
        self._prompts.append(sequence.take_prompt_logprobs() if sequence.prompt_logprobs else None)
        self._cached_tokens.append((sequence.cached_tokens or 0) if sequence.output_tokens == 1 else -1)

    def message(self, step: StepId) -> TokensEmitted:
        return TokensEmitted(
            step=step,
            requests=pack_i64(self._requests),
            choices=pack_i32(self._choices),
            positions=pack_i32(self._positions),
            token_ids=pack_i32(self._token_ids),
            cached_tokens=pack_i32(self._cached_tokens),
            logprobs=LogprobColumns.of(self._logprobs),
            prompt_logprobs=PromptLogprobs.of(self._prompts),
        )


@attrs.define(eq=False)
class FinishedRows:
    """Rows of one RequestsFinished."""

    _requests: list[RequestId] = attrs.field(init=False, factory=list)
    _choices: list[int] = attrs.field(init=False, factory=list)
    _reasons: list[FinishReason] = attrs.field(init=False, factory=list)
    _output_tokens: list[int] = attrs.field(init=False, factory=list)

    def add(self, sequence: Sequence, reason: FinishReason, output_tokens: int) -> None:
        self._requests.append(sequence.request)
        self._choices.append(sequence.choice)
        self._reasons.append(reason)
        self._output_tokens.append(output_tokens)

    def message(self) -> RequestsFinished:
        return RequestsFinished(
            requests=pack_i64(self._requests),
            choices=pack_i32(self._choices),
            reasons=pack_i8(self._reasons),
            output_tokens=pack_i32(self._output_tokens),
        )


def emit(step: StepId, tokens: dict[TextWorker, TokenRows], finished: dict[TextWorker, FinishedRows]) -> Iterator[Outgoing]:
    """The messages of one step: to each worker its tokens, which count against its credit, then which choices ended with it."""
    for worker in tokens | finished if finished else tokens:
        if worker in tokens:
            worker.emitted(step)
            yield Outgoing(worker.worker, tokens[worker].message(step))
        if worker in finished:
            yield Outgoing(worker.worker, finished[worker].message())
