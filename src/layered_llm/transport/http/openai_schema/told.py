"""What a body asks to be told beside the text: log probabilities, token ids, and the prompt itself.

Must not know: how it is told.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from layered_llm.domain.errors import ParameterError


@attrs.frozen(kw_only=True)
class Told:
    """The numbers are of the likeliest tokens; None tells no log probabilities at all."""

    logprobs: int | None
    prompt_logprobs: int | None
    has_prompt_field: bool
    """Whether `prompt_logprobs` was asked for, and not only implied by an echo."""
    echo: bool
    echoes_logprobs: bool = False
    """The output's log probabilities begin with the prompt's."""
    token_ids: bool
    """The ids of the prompt's and the output's tokens."""
    tokens_as_ids: bool
    """Log probabilities name tokens by their ids."""


def told_by_chat(given: Mapping[str, Any]) -> Told:
    """Raises ParameterError."""
    is_asked, top = given.get("logprobs", False), given.get("top_logprobs", 0)
    if top and not is_asked:
        raise ParameterError("top_logprobs", "top_logprobs is only allowed when logprobs is true")
    return Told(logprobs=top if is_asked else None, **_common(given))


def told_by_completion(given: Mapping[str, Any]) -> Told:
    """An echo tells of the prompt what is told of the output, where nothing else is said, as in vLLM. Raises ParameterError."""
    logprobs = given.get("logprobs")
    told = Told(logprobs=logprobs, **_common(given))
    if not told.echo or logprobs is None:
        return told
    return attrs.evolve(
        told,
        prompt_logprobs=logprobs if told.prompt_logprobs is None else told.prompt_logprobs,
        echoes_logprobs=True,
    )


def _common(given: Mapping[str, Any]) -> dict[str, Any]:
    prompt = given.get("prompt_logprobs")
    if prompt is not None and given.get("stream"):
        raise ParameterError("prompt_logprobs", "prompt_logprobs is not allowed when stream is true")
    return {
        "prompt_logprobs": prompt,
        "has_prompt_field": prompt is not None,
        "echo": given.get("echo", False),
        "token_ids": given.get("return_token_ids", False),
        "tokens_as_ids": given.get("return_tokens_as_token_ids", False),
    }
