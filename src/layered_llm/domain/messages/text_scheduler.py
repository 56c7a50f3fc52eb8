"""The link between a text worker and the scheduler.

Must not know: texts, templates, devices.

An Admit is answered once by Queued or Refused. After Queued each choice gets rows of TokensEmitted, then exactly one row of
RequestsFinished, whatever ends it: the model, a limit, a Stop, an Abort, a failure.
"""

import attrs

from layered_llm.domain.columns import Columnar, column, packed, rows
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId, StepId
from layered_llm.domain.messages.logprobs import LogprobColumns, PromptLogprobs, check_prompt_rows, check_rows
from layered_llm.domain.placement import ANYWHERE, Placement
from layered_llm.domain.verdicts import RefuseReason


@attrs.frozen(kw_only=True)
class TokenSampling(Columnar):
    """What the runtime needs to sample a choice; part of Admit and of ExecuteStep."""

    temperature: float
    """0.0 is greedy."""
    top_p: float
    top_k: int
    """0 keeps the whole vocabulary."""
    seed: int
    min_tokens: int
    """While fewer tokens than this are sampled, every id of `end_ids` is masked."""
    end_ids: tuple[int, ...]
    """eos ids (none under ignore_eos) and stop token ids: sampling one of them ends the choice."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    biased_ids: bytes = column("i", "biases", default=b"")
    """Tokens of the vocabulary, each at most once, to whose logits `biases` are added."""
    biases: bytes = column("f", "biases", default=b"")
    top_n_sigma: float = 0.0
    """0 keeps all."""
    allowed_ids: bytes = column("i", default=b"")
    """The only tokens that are sampled; none at all: the whole vocabulary."""
    bad_words: tuple[bytes, ...] = ()
    """Packed token ids of each, at least one: the last is not sampled where the output ends with the others."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens, by the rows that compute them while nothing is sampled yet."""
    logprobs: int | None = None
    """How many of the likeliest tokens come with each sampled token and its log probability; None: neither comes."""
    missing_ranges: bytes = column("i", default=b"")
    """Ids that the model has logits for and the tokenizer no token: they are never sampled and never shown.

    Of each range its first id and the one after its last; rising.
    """


@attrs.frozen(kw_only=True)
class Admit(Columnar):
    """A request whose prompt is known token by token. It is admitted once: preemption is the scheduler's affair."""

    request: RequestId
    choices: int
    prompt_ids: bytes = column("i")
    max_tokens: int
    """At least 1, and prompt and output together, without the last token, never exceed the context."""
    sampling: TokenSampling
    placement: Placement = ANYWHERE
    output_ids: tuple[bytes, ...] = attrs.field(default=(), validator=attrs.validators.deep_iterable(packed("i")))
    """Of each choice the packed tokens that it has so far, which count against `max_tokens`; empty where it begins.

    The first token that is emitted of it has the position after them.
    """
    reads_cache: bool = True
    """False: all of the prompt is computed, as each of its tokens has a log probability to be computed."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.prompt_ids or self.max_tokens < 1 or self.choices < 1:
            raise ValueError("an Admit has a prompt, a choice and at least one token to sample")
        if self.output_ids:
            tokens = [rows("i", output) for output in self.output_ids]
            if len(tokens) != self.choices or max(tokens) >= self.max_tokens:
                raise ValueError("an Admit with tokens so far has those of each choice, and all choices have one to sample")


@attrs.frozen(kw_only=True)
class AbortRequest:
    """End every choice of the request, in whatever phase it is. Unknown and ended requests are counted, not an error."""

    request: RequestId
    reason: AbortReason


@attrs.frozen(kw_only=True)
class StopChoice:
    """A stop string is complete: end this choice, and count `output_tokens` of it. A choice that already ended is no error."""

    request: RequestId
    choice: int
    output_tokens: int


@attrs.frozen(kw_only=True)
class StepsTaken:
    """Credit: this text worker has worked off everything up to and with the TokensEmitted of this step."""

    step: StepId


@attrs.frozen(kw_only=True)
class Queued:
    """The request waits or runs; it will be finished exactly once."""

    request: RequestId


@attrs.frozen(kw_only=True)
class Refused:
    """The request is not taken. `limit` and `actual` are the numbers of the reason, in the reason's unit."""

    request: RequestId
    reason: RefuseReason
    limit: int
    actual: int


@attrs.frozen(kw_only=True)
class TokensEmitted(Columnar):
    """The tokens that one step sampled for one text worker's requests: one row for each choice and token, in packed columns."""

    step: StepId
    requests: bytes = column("q", "rows")
    choices: bytes = column("i", "rows")
    positions: bytes = column("i", "rows")
    """Place in the choice's output, from 0, or after the tokens that it was admitted with.

    A receiver takes exactly the next one; anything else is our own fault.
    """
    token_ids: bytes = column("i", "rows")
    cached_tokens: bytes = column("i", "rows")
    """Prompt tokens that were not computed, in the row of position 0; -1 in other rows."""
    logprobs: LogprobColumns | None = None
    """Of each row's token; None where no row wants any."""
    prompt_logprobs: PromptLogprobs | None = None
    """Of the whole prompts of rows of position 0; None where no row wants any."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.logprobs is not None:
            check_rows(self.logprobs, self.token_ids)
        if self.prompt_logprobs is not None:
            check_prompt_rows(self.prompt_logprobs, rows("i", self.token_ids))


@attrs.frozen(kw_only=True)
class RequestsFinished(Columnar):
    """Choices that ended: one row for each. Follows the TokensEmitted that holds their last tokens."""

    requests: bytes = column("q", "rows")
    choices: bytes = column("i", "rows")
    reasons: bytes = column("b", "rows")
    """A FinishReason for each row, never RUNNING."""
    output_tokens: bytes = column("i", "rows")


TextToScheduler = Admit | AbortRequest | StopChoice | StepsTaken
SchedulerToText = Queued | Refused | TokensEmitted | RequestsFinished
