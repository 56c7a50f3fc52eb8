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


TokenRow = tuple[Sequence, int, int, LogprobEntries]
"""A choice, the position of a token in its output, the token's id, and what is known of its log probability."""
FinishedRow = tuple[RequestId, int, FinishReason, int]
"""A request, the choice of it that ended, why, and with how many tokens."""


@attrs.define(eq=False)
class Gathered:
    """Effects while they come about."""

    now_us: int
    tokens: dict[TextWorker, list[TokenRow]] = attrs.field(init=False, factory=dict)
    finished: dict[TextWorker, list[FinishedRow]] = attrs.field(init=False, factory=dict)
    prefill_us: list[int] = attrs.field(init=False, factory=list)
    ended: list[tuple[int, int]] = attrs.field(init=False, factory=list)
    releases: tuple[AbortRelease, ...] = ()
    new_tokens: int = 0
    is_first_failure: bool = False

    def effects(self, step: StepId) -> Effects:
        """Each worker gets its tokens, which count against its credit, then which choices ended with `step`."""
        outgoing: list[Outgoing] = []
        for worker in self.tokens | self.finished if self.finished else self.tokens:
            if worker in self.tokens:
                worker.emitted(step)
                outgoing.append(Outgoing(worker.worker, _tokens_emitted(step, self.tokens[worker])))
            if worker in self.finished:
                outgoing.append(Outgoing(worker.worker, _requests_finished(self.finished[worker])))
        return Effects(
            outgoing=tuple(outgoing),
            releases=self.releases,
            prefill_us=tuple(self.prefill_us),
            ended=tuple(self.ended),
            new_tokens=self.new_tokens,
            is_first_failure=self.is_first_failure,
        )


def _tokens_emitted(step: StepId, rows: list[TokenRow]) -> TokensEmitted:
    sequences, positions, token_ids, logprobs = zip(*rows, strict=True)
    cached_tokens = [-1 if position else one.cached_tokens or 0 for one, position, _, _ in rows]
    prompts = [one.take_prompt_logprobs() if one.prompt_logprobs else None for one in sequences]
    return TokensEmitted(
        step=step,
        requests=pack_i64([one.request for one in sequences]),
        choices=pack_i32([one.choice for one in sequences]),
        positions=pack_i32(positions),
        token_ids=pack_i32(token_ids),
        cached_tokens=pack_i32(cached_tokens),
        logprobs=LogprobColumns.of(logprobs),
        prompt_logprobs=PromptLogprobs.of(prompts),
    )


def _requests_finished(rows: list[FinishedRow]) -> RequestsFinished:
    requests, choices, reasons, output_tokens = zip(*rows, strict=True)
    return RequestsFinished(
        requests=pack_i64(requests),
        choices=pack_i32(choices),
        reasons=pack_i8(reasons),
        output_tokens=pack_i32(output_tokens),
    )
