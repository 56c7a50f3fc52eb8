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
    return tuple(_told(message.logprobs, message.logprob_tokens))


def prompt_logprobs(message: TextEmitted) -> tuple[tuple[SampledLogprob, ...], ...]:
    """What each of the message's rows tells of its prompt; empty where no request wants any."""
    if message.prompt_logprobs is None:
        return ()
    told = _told(message.prompt_logprobs.columns, message.prompt_logprob_tokens)
    counts = unpack_i32(message.prompt_logprobs.token_counts)
    return tuple(tuple(one for _, one in zip(range(count), told, strict=False) if one is not None) for count in counts)


def _told(columns: LogprobColumns, tokens: tuple[bytes, ...]) -> Iterator[SampledLogprob | None]:
    first = 0
    for entries in columns:
        behind = first + rows("i", entries.token_ids)
        each = zip(unpack_i32(entries.token_ids), tokens[first:behind], unpack_f32(entries.logprobs), strict=True)
        told = [TokenLogprob(token_id=token_id, token=token, logprob=logprob) for token_id, token, logprob in each]
        first = behind
        if not told:
            yield None
            continue
        own, *top = told
        yield SampledLogprob(
            token_id=own.token_id, token=own.token, logprob=own.logprob, top=tuple(top), rank=entries.rank or None
        )
