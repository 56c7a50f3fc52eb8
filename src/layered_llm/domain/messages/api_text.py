"""The link between an API process and one text worker.

Must not know: HTTP, tokens' texts, pages.

Order: all messages about one request take this link to the same text worker, so an Abort never overtakes its Submit.
A request is answered once for each incarnation by Accepted or Rejected; after Accepted come rows of TextEmitted, and exactly
one row of its `ended` table, after which nothing about the request follows.

A question about the tokenizer is a request that never leaves the text worker: it is answered once, by its answer or by
Rejected, and an Abort before that forgets it.
"""

from typing import Final

import attrs

from layered_llm.domain.columns import Columnar, column, packed, rows
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.logprobs import LogprobColumns, PromptLogprobs, check_prompt_rows, check_rows
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.placement import ANYWHERE, Placement
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.verdicts import RejectReason

MAX_TOLD_TOKENS: Final = 1 << 17
"""Of a Tokenized or a Detokenize, which is one message."""


@attrs.frozen(kw_only=True)
class Submit:
    """Opens a request of `params.n` choices."""

    request: RequestId
    prompt: Prompt
    params: SamplingParams
    seed: int
    """That of `params`, or one that was drawn where they have none."""
    placement: Placement = ANYWHERE
    incarnation: int = 0
    """How often the request was submitted before. What is said of an earlier time is late, on whichever way it comes."""
    output_ids: tuple[bytes, ...] = attrs.field(default=(), validator=attrs.validators.deep_iterable(packed("i")))
    """Of each choice the packed tokens that it has so far, which count and are not said again; empty where it begins."""


@attrs.frozen(kw_only=True)
class Abort:
    """The scope of the request is gone: free everything it holds, here and in the engine. No answer is expected."""

    request: RequestId
    reason: AbortReason
    incarnation: int = 0
    """That of the Submit which it ends."""


@attrs.frozen(kw_only=True)
class Accepted(Columnar):
    """The request is queued; the client may be told so."""

    request: RequestId
    prompt_tokens: int
    prompt_ids: bytes = column("i", default=b"")
    """The prompt's tokens, where the request asks for them."""
    incarnation: int = 0
    """That of the Submit."""


@attrs.frozen(kw_only=True)
class Rejected:
    """The request holds nothing, and nothing about it follows."""

    request: RequestId
    reason: RejectReason
    message: str
    """A whole sentence for the caller, with the numbers that explain it."""
    param: str | None = None
    incarnation: int = 0
    """That of the Submit; 0 of a question."""


@attrs.frozen(kw_only=True)
class Tokenize:
    """Asks for the tokens of a prompt."""

    request: RequestId
    prompt: Prompt
    with_spellings: bool = False
    tenant: str = ""
    """Whose question it is; tenants take turns."""


@attrs.frozen(kw_only=True)
class Detokenize(Columnar):
    """Asks for the text of tokens."""

    request: RequestId
    token_ids: bytes = column("i")
    skip_special_tokens: bool = False
    tenant: str = ""
    """Whose question it is; tenants take turns."""


@attrs.frozen(kw_only=True)
class DescribeTokenizer:
    """Asks for what the checkpoint says of its tokenizer."""

    request: RequestId
    tenant: str = ""


@attrs.frozen(kw_only=True)
class Tokenized(Columnar):
    """The tokens of a prompt, which may be none, and more than the context holds."""

    request: RequestId
    token_ids: bytes = column("i")
    spellings: tuple[str, ...] | None = None
    """Of each token, as the vocabulary has it; None unless asked for."""


@attrs.frozen(kw_only=True)
class Detokenized:
    """The text of tokens."""

    request: RequestId
    text: str


@attrs.frozen(kw_only=True)
class TokenizerDescribed:
    """What the checkpoint says of its tokenizer."""

    request: RequestId
    config: str
    """The members of its tokenizer_config.json, the chat template included, as one JSON object: what a client is sent."""


@attrs.frozen(kw_only=True)
class TextEmitted(Columnar):
    """What one step brought to the requests of one API process that are in the same incarnation.

    Two tables, of one row per choice that has something new and of one row per request that ended, in packed columns.
    A choice's last row has its finish reason. A request's row in `ended` comes with or after the last row of its last choice.
    """

    requests: bytes = column("q", "rows")
    choices: bytes = column("i", "rows")
    texts: tuple[str, ...]
    token_counts: bytes = column("i", "rows")
    """Tokens of each row; their ids are in `token_ids`, row after row. May be 0, and text may be "" beside tokens."""
    token_ids: bytes = column("i")
    finish_reasons: bytes = column("b", "rows")
    """A FinishReason for each row, RUNNING while the choice goes on."""
    matched_stops: tuple[str | int | None, ...]
    """The stop string or stop token id that ended the choice, else None."""

    ended: bytes = column("q", "ended")
    ended_prompt_tokens: bytes = column("i", "ended")
    ended_completion_tokens: bytes = column("i", "ended")
    """Sampled tokens of all choices that count: a stop string cuts after the token that completed it."""
    ended_cached_tokens: bytes = column("i", "ended")
    ended_errors: tuple[str | None, ...]
    """Why the request failed, None when each choice ended by itself."""
    incarnation: int = 0

    logprobs: LogprobColumns | None = None
    """Of each of `token_ids`; None where no token's request wants any."""
    logprob_tokens: tuple[bytes, ...] = ()
    """The bytes of each entry's token: parts of UTF-8 characters, where the vocabulary has tokens for those."""
    text_offsets: bytes = column("i", default=b"")
    """Where the text of each of `token_ids` begins in its choice's, in characters; empty where `logprobs` is None."""
    prompt_logprobs: PromptLogprobs | None = None
    """Of the whole prompt, with the first row of each choice that wants them."""
    prompt_logprob_tokens: tuple[bytes, ...] = ()
    prompt_text_offsets: bytes = column("i", default=b"")
    """Of each prompt token that is told, in the text of a choice that begins with the prompt, else 0."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not len(self.texts) == len(self.matched_stops) == len(self.finish_reasons):
            raise ValueError("texts and matched_stops have one item for each row")
        if len(self.ended_errors) * 8 != len(self.ended):
            raise ValueError("ended_errors has one item for each ended request")
        if self.logprobs is not None:
            check_rows(self.logprobs, self.token_ids)
        if self.prompt_logprobs is not None:
            check_prompt_rows(self.prompt_logprobs, len(self.texts))
        prompts = None if self.prompt_logprobs is None else self.prompt_logprobs.columns
        if self.logprobs is not None or self.text_offsets or self.logprob_tokens:
            _check_told(self.logprobs, self.text_offsets, self.logprob_tokens)
        if prompts is not None or self.prompt_text_offsets or self.prompt_logprob_tokens:
            _check_told(prompts, self.prompt_text_offsets, self.prompt_logprob_tokens)


def _check_told(columns: LogprobColumns | None, offsets: bytes, names: tuple[bytes, ...]) -> None:
    if rows("i", offsets) != (0 if columns is None else columns.row_count):
        raise ValueError("there is one offset for each token that is told")
    if len(names) != (0 if columns is None else rows("i", columns.token_ids)):
        raise ValueError("there is one name for each log probability")


TextQuestion = Tokenize | Detokenize | DescribeTokenizer
TextAnswer = Tokenized | Detokenized | TokenizerDescribed

ApiToText = Submit | Abort | TextQuestion
TextToApi = Accepted | Rejected | TextEmitted | TextAnswer
