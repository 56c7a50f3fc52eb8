"""The log probabilities of a TextEmitted, token by token.

Must not know: requests, who reads them.
"""

from collections.abc import Iterator

from layered_llm.domain.columns import rows, unpack_f32, unpack_i32
from layered_llm.domain.messages.api_text import TextEmitted
from layered_llm.domain.messages.logprobs import LogprobColumns
from layered_llm.domain.stream import SampledLogprob, TokenLogprob


def sampled_logprobs(message: TextEmitted) -> tuple[SampledLogprob | None, ...]:
    """One for each of the message's tokens, None for a token whose request wants none; empty where no request wants any."""
    if message.logprobs is None:
        return ()
    return tuple(_sampled(message.logprobs, message.logprob_tokens))


def _sampled(columns: LogprobColumns, tokens: tuple[bytes, ...]) -> Iterator[SampledLogprob | None]:
    first = 0
    for entries in columns:
        behind = first + rows("i", entries.token_ids)
        each = zip(unpack_i32(entries.token_ids), tokens[first:behind], unpack_f32(entries.logprobs), strict=True)
        told = [TokenLogprob(token_id=token_id, token=token, logprob=logprob) for token_id, token, logprob in each]
        first = behind
        if not told:
            yield None
            continue
        sampled, *top = told
        yield SampledLogprob(token_id=sampled.token_id, token=sampled.token, logprob=sampled.logprob, top=tuple(top))
