"""Log probabilities in OpenAI's words, which differ between the two endpoints.

Must not know: choices, chunks, who asked.

What is written piece by piece adds up to what is written at once. A token that is a part of a UTF-8 character is spelled with
U+FFFD; its bytes are exact, and vLLM's `token_id:N` names it beyond doubt. JSON has no minus infinity, so that no logarithm is
below `FLOOR`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from layered_llm.domain.stream import SampledLogprob, TokenLogprob

Json = dict[str, Any]

FLOOR: Final = -9999.0


Naming: TypeAlias = Callable[[TokenLogprob], str]
"""What a token is called."""


def by_text(one: TokenLogprob) -> str:
    return _spelled(one.token)


def by_id(one: TokenLogprob) -> str:
    return f"token_id:{one.token_id}"


class LogprobWriter(Protocol):
    """Words the log probabilities of one choice."""

    def write(self, logprobs: Sequence[SampledLogprob], echoed: Sequence[SampledLogprob] = ()) -> Json:
        """Those of the choice's next tokens, at least one, behind those of the whole prompt where that is echoed."""


class ChatLogprobs:
    """`choices[].logprobs` of `/v1/chat/completions`."""

    def __init__(self, named: Naming) -> None:
        self._named = named

    def write(self, logprobs: Sequence[SampledLogprob], echoed: Sequence[SampledLogprob] = ()) -> Json:
        tokens = (*echoed, *logprobs)
        content = [{**self._entry(sampled), "top_logprobs": [self._entry(one) for one in sampled.top]} for sampled in tokens]
        return {"content": content, "refusal": None}

    def _entry(self, one: TokenLogprob) -> Json:
        return {"token": self._named(one), "logprob": _floored(one.logprob), "bytes": list(one.token)}


class CompletionLogprobs:
    """`choices[].logprobs` of `/v1/completions`."""

    def __init__(self, named: Naming) -> None:
        self._named = named

    def write(self, logprobs: Sequence[SampledLogprob], echoed: Sequence[SampledLogprob] = ()) -> Json:
        tokens = (*echoed, *logprobs)
        unknown = (None,) * bool(echoed)
        known = tokens[len(unknown) :]
        return {
            "text_offset": [sampled.text_offset for sampled in tokens],
            "token_logprobs": [*unknown, *(_floored(sampled.logprob) for sampled in known)],
            "tokens": [self._named(sampled) for sampled in tokens],
            "top_logprobs": [*unknown, *(self._by_name(sampled) for sampled in known)],
        }

    def _by_name(self, sampled: SampledLogprob) -> dict[str, float]:
        """The likeliest first, and the sampled token; of tokens that are named alike the likeliest one."""
        words: dict[str, float] = {}
        for one in (*sampled.top, sampled):
            words.setdefault(self._named(one), _floored(one.logprob))
        return words


def prompt_object(prompt: Sequence[SampledLogprob]) -> list[Json | None]:
    """vLLM's `prompt_logprobs`: by token id, null for the first token."""
    return [None, *(_by_id(token) for token in prompt[1:])] if prompt else []


def _by_id(sampled: SampledLogprob) -> Json:
    ranks = {sampled.token_id: sampled.rank} | {one.token_id: rank for rank, one in enumerate(sampled.top, 1)}
    return {
        str(one.token_id): {
            "logprob": _floored(one.logprob),
            "rank": ranks.get(one.token_id),
            "decoded_token": _spelled(one.token),
        }
        for one in (sampled, *sampled.top)
    }


def _spelled(token: bytes) -> str:
    return token.decode(errors="replace")


def _floored(logprob: float) -> float:
    return max(logprob, FLOOR)
