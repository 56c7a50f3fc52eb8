"""The log probabilities of one choice of `/generate`, as they grow.

Must not know: choices, events, where log probabilities come from.

Each token is encoded once: an event of a stream has all of them so far, and to encode these anew for each event would hold up
the other responses, for longer with each token.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from layered_llm.domain.stream import SampledLogprob, TokenLogprob
from layered_llm.transport.http.exchange import sse
from layered_llm.transport.http.openai.schema.logprobs import FLOOR
from layered_llm.transport.http.sglang.generate_body import LogprobsAsked

Tokens: TypeAlias = Sequence[SampledLogprob]

_OUTPUT: Final = ("output_token_logprobs", "output_top_logprobs")
_TOKENS_AT_ONCE: Final = 24
"""Some 2 ms of encoding, where 20 likeliest tokens stand beside each."""
_INPUT: Final = ("input_token_logprobs", "input_top_logprobs")


@attrs.define
class GrowingLogprobs:
    """Of each token [logarithm, id, text]; the first token of a prompt has no logarithm, and the text only where asked for."""

    _asked: LogprobsAsked
    _lists: dict[str, bytearray] = attrs.field(init=False, factory=dict)
    """The items of each member, encoded."""
    _pending: deque[tuple[tuple[str, str], Tokens, bool]] = attrs.field(init=False, factory=deque)
    """What was added since they were last asked for, in portions, and whether its first token has a probability."""

    def __attrs_post_init__(self) -> None:
        for kinds in (_OUTPUT, *(() if self._asked.prompt_from is None else (_INPUT,))):
            self._lists |= {name: bytearray() for name in kinds[: 1 + self._asked.has_top]}

    def add(self, output: Tokens, prompt: Tokens) -> None:
        """The next tokens of the output; the prompt, where it is told, comes in one piece."""
        if prompt and self._asked.prompt_from is not None:
            self._set_aside(_INPUT, prompt, self._asked.prompt_from)
        self._set_aside(_OUTPUT, output, 0)

    def members(self) -> Mapping[str, bytes]:
        """By name, each as JSON; where much was added `encode_some` comes before."""
        while self.encode_some():
            pass
        return {name: b"[%b]" % bytes(items) for name, items in self._lists.items()}

    def encode_some(self) -> bool:
        """Encodes some of what was added, a few milliseconds' worth; whether there was any."""
        if not self._pending:
            return False
        kinds, tokens, has_probability = self._pending.popleft()
        entries = [self._entry(one) for one in tokens]
        if not has_probability:
            entries[0][0] = None
        self._add(kinds, entries, tokens)
        return True

    def _set_aside(self, kinds: tuple[str, str], tokens: Tokens, first: int) -> None:
        for place in range(first, len(tokens), _TOKENS_AT_ONCE):
            self._pending.append((kinds, tokens[place : place + _TOKENS_AT_ONCE], kinds is _OUTPUT or place > 0))

    def _add(self, kinds: tuple[str, str], entries: Sequence[object], tokens: Tokens) -> None:
        own, top = kinds
        self._append(own, entries)
        if self._asked.has_top:
            self._append(top, [[self._entry(one) for one in token.top] or None for token in tokens])

    def _append(self, name: str, items: Sequence[object]) -> None:
        if items:
            known = self._lists[name]
            known += (b"," if known else b"") + sse.to_json(items)[1:-1]

    def _entry(self, one: TokenLogprob) -> list[object]:
        text = one.token.decode(errors="replace") if self._asked.with_text else None
        return [max(one.logprob, FLOOR), one.token_id, text]
