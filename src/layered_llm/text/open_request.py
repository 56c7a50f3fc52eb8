"""A request between its Admit and the scheduler's word that each of its choices ended, and the text of each choice.

Must not know: messages' columns, counters, other requests.

Two ends are kept apart. A choice has *ended* when its end was sent to the API, which a stop string does at once; it is
*confirmed* when the scheduler finished it, after which no token comes. The state lives until every choice is confirmed.

The text of an end token (eos or stop token id) is not shown unless the request includes stops in its output; the token counts
all the same. A stop string counts after `min_tokens` tokens only, as end tokens do.
"""

import attrs

from layered_llm.domain.columns import rows, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import PathId, RequestId, api_of, compose_path_id
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
    tokens: int = 0
    """How many count: all that were pushed, the one that completed a stop string being the last."""
    end_token: int | None = None
    """The last token, if it was an end token."""
    matched_string: str | None = None
    """The stop string that is complete; nothing is pushed after it."""
    offset: int = 0
    """Where the text of the last token begins; 0 where nobody asks."""

    @property
    def matched_token(self) -> int | None:
        """The last token, if it was an end token that only the request named."""
        return self.end_token if self.end_token in self._end_tokens.named else None

    def push(self, token: int) -> str:
        """The text that is certain with this token; empty while a character or a possible stop string is incomplete."""
        self.tokens += 1
        self.end_token = token if token in self._end_tokens.ids else None
        is_hidden = self.end_token is not None and not self._includes_stop
        if self._offsets is not None:
            self.offset = self._offsets.chars if is_hidden else self._offsets.push(token)
        if is_hidden:
            return ""
        text = self._detokenizer.push(token)
        return text if self._scanner is None else self._scanned(self._scanner, text)

    def finish(self) -> str:
        """The text still held, when no token follows. It may complete a stop string."""
        text = self._detokenizer.finish()
        if self._scanner is None:
            return text
        text = self._scanned(self._scanner, text)
        return text if self.matched_string is not None else text + self._scanner.finish()

    def _scanned(self, scanner: StopScanner, text: str) -> str:
        certain = scanner.push(text, is_armed=self.tokens > self._min_tokens)
        self.matched_string = scanner.matched
        return certain


@attrs.define
class OpenChoice:
    """One choice and how far it came on both sides."""

    text: ChoiceText
    received_tokens: int = 0
    has_ended: bool = False
    is_confirmed: bool = False


@attrs.define(kw_only=True)
class OpenRequest:
    """The state of one request; written by the text core alone."""

    request: RequestId
    incarnation: int
    path: PathId
    """Where what is said of it goes."""
    prompt_tokens: int
    shown_prompt_ids: bytes = b""
    """What the API gets of them with its verdict."""
    choices: list[OpenChoice]
    unended_choices: int
    """Those whose end was not sent to the API."""
    unconfirmed_choices: int
    completion_tokens: int = 0
    """Of the choices that ended."""
    is_queued: bool = False
    """The API knows that the request is accepted."""
    is_silent: bool = False
    """Nothing more is sent to the API: it left, or has the end."""
    cached_tokens: int | None = None
    error: str | None = None
    """What failed, once something did."""
    echo: str = ""
    """What the text of each choice begins with."""
    echo_offsets: bytes = b""
    """Where each of the prompt's tokens begins in it."""
    is_prompt_only: bool = False
    """The one token that each choice samples is not shown."""

    def receive(self, index: int, position: int, cached_tokens: int) -> OpenChoice:
        """Notes that the token at `position` of a choice came. Raises InvariantViolated unless it is the next one."""
        choice = self._choice(index)
        if position != choice.received_tokens:
            raise InvariantViolated(
                f"request {self.request} choice {index}: token {position} came, {choice.received_tokens} is the next one"
            )
        choice.received_tokens += 1
        if position == 0:
            # Later choices find what the first one computed, so that the least is what the prompt was spared.
            self.cached_tokens = cached_tokens if self.cached_tokens is None else min(self.cached_tokens, cached_tokens)
        return choice

    def confirm(self, index: int, reason: FinishReason, output_tokens: int) -> OpenChoice:
        """Notes that the scheduler finished a choice. Raises InvariantViolated when its word does not fit what came."""
        choice = self._choice(index)
        choice.is_confirmed = True
        self.unconfirmed_choices -= 1
        if choice.has_ended or self.is_silent:
            return choice
        where = f"request {self.request} choice {index}"
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and output_tokens != choice.received_tokens:
            raise InvariantViolated(f"{where} finished with {output_tokens} tokens, {choice.received_tokens} came")
        if reason is FinishReason.RUNNING or (reason is FinishReason.STOP and choice.text.end_token is None):
            raise InvariantViolated(f"{where} finished with reason {reason.name} and no end token")
        return choice

    def end(self, index: int) -> OpenChoice:
        """Notes that the end of a choice is sent to the API."""
        choice = self.choices[index]
        choice.has_ended = True
        self.unended_choices -= 1
        self.completion_tokens += choice.text.tokens
        return choice

    def _choice(self, index: int) -> OpenChoice:
        if not self.is_queued or not 0 <= index < len(self.choices) or self.choices[index].is_confirmed:
            raise InvariantViolated(f"request {self.request} has no running choice {index}")
        return self.choices[index]


def open_request(prepared: Prepared, tokenizer: Tokenizer) -> OpenRequest:
    """The state of a request that is about to be admitted."""
    admit = prepared.admit
    return OpenRequest(
        request=admit.request,
        incarnation=prepared.incarnation,
        path=compose_path_id(api_of(admit.request), prepared.incarnation),
        prompt_tokens=rows("i", admit.prompt_ids),
        shown_prompt_ids=admit.prompt_ids if prepared.params.tells_prompt_ids else b"",
        choices=_start_choices(prepared, tokenizer),
        unended_choices=admit.choices,
        unconfirmed_choices=admit.choices,
        echo=prepared.echo,
        echo_offsets=prepared.echo_offsets,
        is_prompt_only=prepared.params.max_tokens == 0,
    )


def _start_choices(prepared: Prepared, tokenizer: Tokenizer) -> list[OpenChoice]:
    params, stops, choices = prepared.params, prepared.stops, []
    for output_ids in prepared.admit.output_ids or (b"",) * params.n:
        text = ChoiceText(
            detokenizer=tokenizer.start_detokenizer(skip_special_tokens=params.skip_special_tokens),
            scanner=None if stops is None else StopScanner(stops, params.include_stop_str_in_output),
            end_tokens=prepared.end_tokens,
            includes_stop=params.include_stop_str_in_output,
            min_tokens=prepared.admit.sampling.min_tokens,
            offsets=None
            if params.logprobs is None
            else TextOffsets(tokenizer, params.skip_special_tokens, chars=len(prepared.echo)),
        )
        tokens = unpack_i32(output_ids)
        for token in tokens:
            text.push(token)  # what the API has of them it got when they came
        choices.append(OpenChoice(text, received_tokens=len(tokens)))
    return choices
