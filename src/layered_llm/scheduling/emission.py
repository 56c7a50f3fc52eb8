"""What comes of a message or of a step's result: messages to text workers, one of each kind for each, and what was measured.

Must not know: who runs, why a choice ended.
"""

import attrs

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import RequestId, StepId, TextId
from layered_llm.domain.messages.logprobs import LogprobColumns, LogprobEntries, PromptLogprobs
from layered_llm.domain.messages.text_scheduler import RequestsFinished, SchedulerToText, TokensEmitted
from layered_llm.scheduling.flight import AbortRelease
from layered_llm.scheduling.sequences import Sequence, TextWorker


@attrs.frozen
class Outgoing:
    """A message and the text worker that it is for."""

    worker: TextId
    message: SchedulerToText


@attrs.frozen(kw_only=True)
class Effects:
    """Everything that came of a message, of a step's result or of the time."""

    outgoing: tuple[Outgoing, ...] = ()
    releases: tuple[AbortRelease, ...] = ()
    """Aborted requests whose last pages came back."""
    prefill_us: tuple[int, ...] = ()
    """How long each request computed whose first token this is."""
    ended: tuple[tuple[int, int], ...] = ()
    """How long each request computed that ended by itself, and how often choices of it were preempted."""
    new_tokens: int = 0
    """Tokens that the step was the first to compute or sample.

    Each token of a request is new once, but for those of its prompt that were found in the cache.
    """
    is_first_failure: bool = False
    """The first step of which a row failed is back."""


@attrs.define(eq=False)
class TokenRows:
    """Rows of one TokensEmitted."""

    _sequences: list[Sequence] = attrs.field(init=False, factory=list)
    _positions: list[int] = attrs.field(init=False, factory=list)
    _token_ids: list[int] = attrs.field(init=False, factory=list)
    _logprobs: list[LogprobEntries] = attrs.field(init=False, factory=list)

    def add(self, sequence: Sequence, token: int, logprobs: LogprobEntries) -> None:
        """`token` is the last one of the output of `sequence`."""
        self._sequences.append(sequence)
        self._positions.append(sequence.output_tokens - 1)
        self._token_ids.append(token)
        self._logprobs.append(logprobs)

    def message(self, step: StepId) -> TokensEmitted:
        return TokensEmitted(
            step=step,
            requests=pack_i64([one.admit.request for one in self._sequences]),
            choices=pack_i32([one.choice for one in self._sequences]),
            positions=pack_i32(self._positions),
            token_ids=pack_i32(self._token_ids),
            cached_tokens=pack_i32(
                [
                    -1 if position else one.cached_tokens or 0
                    for one, position in zip(self._sequences, self._positions, strict=True)
                ]
            ),
            logprobs=LogprobColumns.of(self._logprobs),
            prompt_logprobs=PromptLogprobs.of(
                [one.take_prompt_logprobs() if one.prompt_logprobs else None for one in self._sequences]
            ),
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


@attrs.define(eq=False)
class Gathered:
    """Effects while they come about."""

    now_us: int
    tokens: dict[TextWorker, TokenRows] = attrs.field(init=False, factory=dict)
    finished: dict[TextWorker, FinishedRows] = attrs.field(init=False, factory=dict)
    prefill_us: list[int] = attrs.field(init=False, factory=list)
    ended: list[tuple[int, int]] = attrs.field(init=False, factory=list)
    releases: tuple[AbortRelease, ...] = ()
    new_tokens: int = 0
    is_first_failure: bool = False

    def finish(self, sequence: Sequence, reason: FinishReason, output_tokens: int) -> None:
        """A choice ends with so many tokens."""
        self.finished.setdefault(sequence.worker, FinishedRows()).add(sequence, reason, output_tokens)

    def effects(self, step: StepId) -> Effects:
        """Each worker gets its tokens, which count against its credit, then which choices ended with `step`."""
        outgoing: list[Outgoing] = []
        for worker in self.tokens | self.finished if self.finished else self.tokens:
            if worker in self.tokens:
                worker.emitted(step)
                outgoing.append(Outgoing(worker.worker, self.tokens[worker].message(step)))
            if worker in self.finished:
                outgoing.append(Outgoing(worker.worker, self.finished[worker].message()))
        return Effects(
            outgoing=tuple(outgoing),
            releases=self.releases,
            prefill_us=tuple(self.prefill_us),
            ended=tuple(self.ended),
            new_tokens=self.new_tokens,
            is_first_failure=self.is_first_failure,
        )
