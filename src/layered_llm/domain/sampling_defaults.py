"""What a model is sampled with where a request leaves that open.

Must not know: where a model says so.
"""

from typing import Any, Final

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.sampling import SamplingParams

_MODEL_DECIDES: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@attrs.frozen(kw_only=True)
class SamplingDefaults:
    """What a model is sampled with where a request does not say. Raises ParameterError for a value out of range."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """Most tokens of any choice, whatever a request asks for; None is no such limit."""

    def __attrs_post_init__(self) -> None:
        SamplingParams(**attrs.asdict(self))
        if self.max_tokens == 0:
            raise ParameterError("max_tokens", "max_tokens must be at least 1, got 0: nothing would ever be sampled")

    def applied(self, params: SamplingParams) -> SamplingParams:
        """`params` with nothing left open but the length of an output that nobody limits."""
        given: dict[str, Any] = {}
        for name in _MODEL_DECIDES:
            if getattr(params, name) is None:
                given[name] = getattr(self, name)
        max_tokens = params.max_tokens
        if max_tokens is None or (self.max_tokens is not None and self.max_tokens < max_tokens):
            max_tokens = self.max_tokens
        least_tokens = params.min_tokens if max_tokens is None else min(params.min_tokens, max_tokens)
        return attrs.evolve(params, **given, max_tokens=max_tokens, min_tokens=least_tokens)


NO_DEFAULTS: Final = SamplingDefaults()
