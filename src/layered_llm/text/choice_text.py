"""The output of one choice: tokens in, shown text out, and where a stop string ends it.

Must not know: messages, other choices, who is told.

The text of an end token (eos or stop token id) is not shown unless the request includes stops in its output; the token counts
all the same. A stop string counts behind `min_tokens` tokens only, as end tokens do.
"""

import attrs

from layered_llm.text.detokenizer import Detokenizer
from layered_llm.text.preparation import EndTokens, Prepared
from layered_llm.text.stop_strings import StopScanner
from layered_llm.text.text_offsets import TextOffsets
from layered_llm.text.tokenizer import Tokenizer


@attrs.define(kw_only=True)
class ChoiceText:
    """The state of one choice until it ends."""

    _detokenizer: Detokenizer
    _scanner: StopScanner | None
    _end_tokens: EndTokens
    _includes_stop: bool
    _min_tokens: int
    _offsets: TextOffsets | None = None
    """Where anybody asks for them."""
    _end_token: int | None = None
    tokens: int = 0
    """How many count: all that were pushed, the one that completed a stop string being the last."""

    @property
    def matched_string(self) -> str | None:
        """The stop string that is complete; nothing is pushed after it."""
        return None if self._scanner is None else self._scanner.matched

    @property
    def end_token(self) -> int | None:
        """The last token, if it was an end token."""
        return self._end_token

    @property
    def matched_token(self) -> int | None:
        """The last token, if it was an end token that only the request named."""
        return self._end_token if self._end_token in self._end_tokens.named else None

    def push(self, token: int) -> str:
        """The text that is certain with this token; empty while a character or a possible stop string is incomplete."""
        self.tokens += 1
        self._end_token = token if token in self._end_tokens.ids else None
        if self._end_token is not None and not self._includes_stop:
            return ""
        return self._scanned(self._detokenizer.push((token,)))

    def offset(self, token: int) -> int:
        """Where the text of `token` begins, which is the one that was pushed last; 0 where nobody asks."""
        if self._offsets is None:
            return 0
        is_hidden = self._end_token is not None and not self._includes_stop
        return self._offsets.chars if is_hidden else self._offsets.push(token)

    def finish(self) -> str:
        """The text still held, when no token follows. It may complete a stop string."""
        text = self._scanned(self._detokenizer.finish())
        if self._scanner is None or self._scanner.matched is not None:
            return text
        return text + self._scanner.finish()

    def _scanned(self, text: str) -> str:
        if self._scanner is None:
            return text
        return self._scanner.push(text, is_armed=self.tokens > self._min_tokens)


def start_choices(prepared: Prepared, tokenizer: Tokenizer) -> list[ChoiceText]:
    """The states of all choices of a request that is about to be admitted."""
    params, stops = prepared.params, prepared.stops
    return [
        ChoiceText(
            detokenizer=tokenizer.start_detokenizer(skip_special_tokens=params.skip_special_tokens),
            scanner=None if stops is None else StopScanner(stops, params.include_stop_str_in_output),
            end_tokens=prepared.end_tokens,
            includes_stop=params.include_stop_str_in_output,
            min_tokens=prepared.admit.sampling.min_tokens,
            offsets=None
            if params.logprobs is None
            else TextOffsets(tokenizer, params.skip_special_tokens, chars=len(prepared.echo)),
        )
        for _ in range(params.n)
    ]
