"""What a body asks to be told beside the text: log probabilities, and the prompt itself.

Must not know: how it is told.
"""

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.sampling import MAX_LOGPROBS
from layered_llm.transport.http.openai_schema import fields as read


@attrs.frozen(kw_only=True)
class Told:
    """The numbers are of the likeliest tokens; None tells no log probabilities at all."""

    logprobs: int | None
    prompt_logprobs: int | None
    echo: bool = False
    has_prompt_field: bool
    """Whether `prompt_logprobs` was asked for, and not only implied by an echo."""

    @property
    def tells_prompt(self) -> bool:
        """Whether there is an answer even without any token of output."""
        return self.echo or self.prompt_logprobs is not None


def told_by_chat(fields: read.JsonObject) -> Told:
    """Raises ParameterError."""
    is_asked = read.optional_bool(fields, "logprobs") or False
    top = read.optional_int(fields, "top_logprobs", 0, MAX_LOGPROBS) or 0
    if top and not is_asked:
        raise ParameterError("top_logprobs", "top_logprobs is only allowed when logprobs is true")
    prompt = _prompt_logprobs(fields)
    return Told(logprobs=top if is_asked else None, prompt_logprobs=prompt, has_prompt_field=prompt is not None)


def told_by_completion(fields: read.JsonObject) -> Told:
    """An echo tells of the prompt what is told of the output, where nothing else is said, as in vLLM. Raises ParameterError."""
    logprobs = read.optional_int(fields, "logprobs", 0, MAX_LOGPROBS)
    echo = read.optional_bool(fields, "echo") or False
    prompt = _prompt_logprobs(fields)
    implied = logprobs if echo else None
    return Told(
        logprobs=logprobs,
        prompt_logprobs=implied if prompt is None else prompt,
        echo=echo,
        has_prompt_field=prompt is not None,
    )


def _prompt_logprobs(fields: read.JsonObject) -> int | None:
    prompt = read.optional_int(fields, "prompt_logprobs", 0, MAX_LOGPROBS)
    if prompt is not None and read.optional_bool(fields, "stream"):
        raise ParameterError("prompt_logprobs", "prompt_logprobs is not allowed when stream is true")
    return prompt
