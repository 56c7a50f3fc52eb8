"""What the text core hands to its shell, and the rows that one message of the scheduler makes for each API process.

Must not know: tokens' texts, when a choice ends.
"""

from collections.abc import Callable

import attrs

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64, unpack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import ApiId, RequestId
from layered_llm.domain.messages.api_text import TextEmitted, TextToApi
from layered_llm.domain.messages.logprobs import LogprobColumns, LogprobEntries, PromptLogprobs
from layered_llm.domain.messages.text_scheduler import TextToScheduler


@attrs.frozen(kw_only=True)
class Outgoing:
    """Messages to send, each link's in this order."""

    to_scheduler: tuple[TextToScheduler, ...] = ()
    to_api: tuple[tuple[ApiId, TextToApi], ...] = ()


@attrs.define
class TextRows:
    """What one API process gets of one message of the scheduler, for one incarnation of requests."""

    _requests: list[int] = attrs.field(init=False, factory=list)
    _choices: list[int] = attrs.field(init=False, factory=list)
    _texts: list[str] = attrs.field(init=False, factory=list)
    _token_counts: list[int] = attrs.field(init=False, factory=list)
    _token_ids: list[int] = attrs.field(init=False, factory=list)
    _finish_reasons: list[int] = attrs.field(init=False, factory=list)
    _matched_stops: list[str | int | None] = attrs.field(init=False, factory=list)
    _ended: list[int] = attrs.field(init=False, factory=list)
    _ended_prompt_tokens: list[int] = attrs.field(init=False, factory=list)
    _ended_completion_tokens: list[int] = attrs.field(init=False, factory=list)
    _ended_cached_tokens: list[int] = attrs.field(init=False, factory=list)
    _ended_errors: list[str | None] = attrs.field(init=False, factory=list)
    _logprobs: list[LogprobEntries] = attrs.field(init=False, factory=list)
    _text_offsets: list[int] = attrs.field(init=False, factory=list)
    _prompts: list[LogprobColumns | None] = attrs.field(init=False, factory=list)
    _prompt_offsets: list[bytes] = attrs.field(init=False, factory=list)

    def prompt(self, request: RequestId, choice: int, text: str, logprobs: LogprobColumns | None, offsets: bytes) -> None:
        """What a choice has of its prompt, before its first token; `offsets` of its tokens, where they are in the text."""
        self._add(request, choice, text)
        self._prompts[-1] = logprobs
        if logprobs is not None:
            self._prompt_offsets.append(offsets or bytes(4 * logprobs.row_count))

    def token(self, request: RequestId, choice: int, token: int, text: str, *, logprobs: LogprobEntries, offset: int) -> None:
        """A token and the text that it made certain."""
        self._token_ids.append(token)
        self._logprobs.append(logprobs)
        self._text_offsets.append(offset)
        self._add(request, choice, text)
        self._token_counts[-1] += 1

    def finish(
        self, request: RequestId, choice: int, *, text: str, reason: FinishReason, matched_stop: str | int | None
    ) -> None:
        """The end of a choice with its last text."""
        self._add(request, choice, text)
        self._finish_reasons[-1] = reason
        self._matched_stops[-1] = matched_stop

    def end(
        self, request: RequestId, *, prompt_tokens: int, completion_tokens: int, cached_tokens: int, error: str | None
    ) -> None:
        """The end of a request, after the last row of its last choice."""
        self._ended.append(request)
        self._ended_prompt_tokens.append(prompt_tokens)
        self._ended_completion_tokens.append(completion_tokens)
        self._ended_cached_tokens.append(cached_tokens)
        self._ended_errors.append(error)

    def message(self, bytes_of: Callable[[int], bytes], incarnation: int) -> TextEmitted:
        """`bytes_of` is what a token stands for."""
        logprobs, prompts = LogprobColumns.of(self._logprobs), PromptLogprobs.of(self._prompts)
        return TextEmitted(
            requests=pack_i64(self._requests),
            choices=pack_i32(self._choices),
            texts=tuple(self._texts),
            token_counts=pack_i32(self._token_counts),
            token_ids=pack_i32(self._token_ids),
            finish_reasons=pack_i8(self._finish_reasons),
            matched_stops=tuple(self._matched_stops),
            ended=pack_i64(self._ended),
            ended_prompt_tokens=pack_i32(self._ended_prompt_tokens),
            ended_completion_tokens=pack_i32(self._ended_completion_tokens),
            ended_cached_tokens=pack_i32(self._ended_cached_tokens),
            ended_errors=tuple(self._ended_errors),
            incarnation=incarnation,
            logprobs=logprobs,
            logprob_tokens=() if logprobs is None else _names(logprobs, bytes_of),
            text_offsets=b"" if logprobs is None else pack_i32(self._text_offsets),
            prompt_logprobs=prompts,
            prompt_logprob_tokens=() if prompts is None else _names(prompts.columns, bytes_of),
            prompt_text_offsets=b"".join(self._prompt_offsets),
        )

    def _add(self, request: RequestId, choice: int, text: str) -> None:
        """To the choice's row where that is the latest one, else to a new one."""
        if self._requests and self._requests[-1] == request and self._choices[-1] == choice:
            self._texts[-1] += text
            return
        self._requests.append(request)
        self._choices.append(choice)
        self._texts.append(text)
        self._prompts.append(None)
        self._token_counts.append(0)
        self._finish_reasons.append(FinishReason.RUNNING)
        self._matched_stops.append(None)


def _names(columns: LogprobColumns, bytes_of: Callable[[int], bytes]) -> tuple[bytes, ...]:
    """A prompt's may be a quarter of a million, most of them of the same tokens."""
    token_ids = unpack_i32(columns.token_ids)
    names = {token: bytes_of(token) for token in set(token_ids)}
    return tuple(map(names.__getitem__, token_ids))
