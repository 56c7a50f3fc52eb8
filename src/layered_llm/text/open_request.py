"""A request between its Admit and the scheduler's word that each of its choices ended.

Must not know: messages' columns, counters, other requests.

Two ends are kept apart. A choice has *ended* when the API was told so, which a stop string does at once; it is *confirmed* when
the scheduler finished it, after which no token comes. The state lives until every choice is confirmed.
"""

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import RequestId
from layered_llm.text.choice_text import ChoiceText


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
    prompt_tokens: int
    told_prompt_ids: bytes = b""
    """What the API is told of them with its verdict."""
    choices: list[OpenChoice]
    is_queued: bool = False
    """The API was told that the request is accepted."""
    is_silent: bool = False
    """Nothing more is sent to the API: it left, or was told the end."""
    cached_tokens: int | None = None
    error: str | None = None
    """What failed, once something did."""
    echo: str = ""
    """What the text of each choice begins with."""
    echo_offsets: bytes = b""
    """Where each of the prompt's tokens begins in it."""
    is_prompt_only: bool = False
    """The one token that each choice samples is not shown."""

    @property
    def has_ended(self) -> bool:
        """The API was told the end of each choice."""
        return all(choice.has_ended for choice in self.choices)

    @property
    def is_confirmed(self) -> bool:
        return all(choice.is_confirmed for choice in self.choices)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.text.tokens for choice in self.choices)

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
        if choice.has_ended or self.is_silent:
            return choice
        where = f"request {self.request} choice {index}"
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and output_tokens != choice.received_tokens:
            raise InvariantViolated(f"{where} finished with {output_tokens} tokens, {choice.received_tokens} came")
        if reason is FinishReason.RUNNING or (reason is FinishReason.STOP and choice.text.end_token is None):
            raise InvariantViolated(f"{where} finished with reason {reason.name} and no end token")
        return choice

    def _choice(self, index: int) -> OpenChoice:
        if not self.is_queued or not 0 <= index < len(self.choices) or self.choices[index].is_confirmed:
            raise InvariantViolated(f"request {self.request} has no running choice {index}")
        return self.choices[index]
