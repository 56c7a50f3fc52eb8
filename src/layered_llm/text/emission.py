"""What the text core hands to its shell, and the tables that one message of the scheduler fills for each API process.

Must not know: tokens' texts, when a choice ends.
"""

from collections.abc import Callable

import attrs

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64, unpack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import ApiId, RequestId, api_of
from layered_llm.domain.messages.api_text import TextEmitted, TextToApi
from layered_llm.domain.messages.logprobs import LogprobColumns, LogprobEntries, PromptLogprobs
from layered_llm.domain.messages.text_scheduler import TextToScheduler


@attrs.frozen(kw_only=True)
class Outgoing:
    """Messages to send, each link's in this order."""

    to_scheduler: tuple[TextToScheduler, ...] = ()
    to_api: tuple[tuple[ApiId, TextToApi], ...] = ()


@attrs.define
class _Rows:
    requests: list[int] = attrs.field(init=False, factory=list)
    choices: list[int] = attrs.field(init=False, factory=list)
    texts: list[str] = attrs.field(init=False, factory=list)
    token_counts: list[int] = attrs.field(init=False, factory=list)
    token_ids: list[int] = attrs.field(init=False, factory=list)
    finish_reasons: list[int] = attrs.field(init=False, factory=list)
    matched_stops: list[str | int | None] = attrs.field(init=False, factory=list)
    ended: list[int] = attrs.field(init=False, factory=list)
    ended_prompt_tokens: list[int] = attrs.field(init=False, factory=list)
    ended_completion_tokens: list[int] = attrs.field(init=False, factory=list)
    ended_cached_tokens: list[int] = attrs.field(init=False, factory=list)
    ended_errors: list[str | None] = attrs.field(init=False, factory=list)
    logprobs: list[LogprobEntries] = attrs.field(init=False, factory=list)
    text_offsets: list[int] = attrs.field(init=False, factory=list)
    prompts: list[LogprobColumns | None] = attrs.field(init=False, factory=list)
    prompt_offsets: list[bytes] = attrs.field(init=False, factory=list)

    def message(self, bytes_of: Callable[[int], bytes]) -> TextEmitted:
        logprobs, prompts = LogprobColumns.of(self.logprobs), PromptLogprobs.of(self.prompts)
        return TextEmitted(
            requests=pack_i64(self.requests),
            choices=pack_i32(self.choices),
            texts=tuple(self.texts),
            token_counts=pack_i32(self.token_counts),
            token_ids=pack_i32(self.token_ids),
            finish_reasons=pack_i8(self.finish_reasons),
            matched_stops=tuple(self.matched_stops),
            ended=pack_i64(self.ended),
            ended_prompt_tokens=pack_i32(self.ended_prompt_tokens),
            ended_completion_tokens=pack_i32(self.ended_completion_tokens),
            ended_cached_tokens=pack_i32(self.ended_cached_tokens),
            ended_errors=tuple(self.ended_errors),
            logprobs=logprobs,
            logprob_tokens=() if logprobs is None else _names(logprobs, bytes_of),
            text_offsets=b"" if logprobs is None else pack_i32(self.text_offsets),
            prompt_logprobs=prompts,
            prompt_logprob_tokens=() if prompts is None else _names(prompts.columns, bytes_of),
            prompt_text_offsets=b"".join(self.prompt_offsets),
        )


def _names(columns: LogprobColumns, bytes_of: Callable[[int], bytes]) -> tuple[bytes, ...]:
    """A prompt's may be a quarter of a million, most of them of the same tokens."""
    token_ids = unpack_i32(columns.token_ids)
    names = {token: bytes_of(token) for token in set(token_ids)}
    return tuple(map(names.__getitem__, token_ids))


@attrs.define
class TextTables:
    """One table for each API process that gets something."""

    _bytes_of: Callable[[int], bytes]
    """What a token stands for."""
    _rows: dict[ApiId, _Rows] = attrs.field(init=False, factory=dict)

    def prompt(self, request: RequestId, choice: int, text: str, told: LogprobColumns | None, offsets: bytes) -> None:
        """What a choice tells of its prompt, before its first token; `offsets` of its tokens, where they are in the text."""
        if text or told is not None:
            rows = self._of(request)
            self._add(rows, request, choice, text, token_count=0)
            rows.prompts[-1] = told
            if told is not None:
                rows.prompt_offsets.append(offsets or bytes(4 * told.row_count))

    def token(self, request: RequestId, choice: int, token: int, text: str, *, logprobs: LogprobEntries, offset: int) -> None:
        """A token and the text that it made certain; tokens of one choice that come in a row share its row."""
        rows = self._of(request)
        rows.token_ids.append(token)
        rows.logprobs.append(logprobs)
        rows.text_offsets.append(offset)
        if rows.requests and rows.requests[-1] == request and rows.choices[-1] == choice:
            rows.token_counts[-1] += 1
            rows.texts[-1] += text
        else:
            self._add(rows, request, choice, text, token_count=1)

    def finish(
        self, request: RequestId, choice: int, *, text: str, reason: FinishReason, matched_stop: str | int | None
    ) -> None:
        """The end of a choice with its last text, in the row of its last token where that is the latest one."""
        rows = self._of(request)
        if rows.requests and rows.requests[-1] == request and rows.choices[-1] == choice:
            rows.texts[-1] += text
        else:
            self._add(rows, request, choice, text, token_count=0)
        rows.finish_reasons[-1] = reason
        rows.matched_stops[-1] = matched_stop

    def end(
        self, request: RequestId, *, prompt_tokens: int, completion_tokens: int, cached_tokens: int, error: str | None
    ) -> None:
        """The end of a request, behind the last row of its last choice."""
        rows = self._of(request)
        rows.ended.append(request)
        rows.ended_prompt_tokens.append(prompt_tokens)
        rows.ended_completion_tokens.append(completion_tokens)
        rows.ended_cached_tokens.append(cached_tokens)
        rows.ended_errors.append(error)

    def messages(self) -> tuple[tuple[ApiId, TextEmitted], ...]:
        return tuple((api, rows.message(self._bytes_of)) for api, rows in self._rows.items())

    def _of(self, request: RequestId) -> _Rows:
        api = api_of(request)
        rows = self._rows.get(api)
        if rows is None:
            rows = self._rows[api] = _Rows()
        return rows

    def _add(self, rows: _Rows, request: RequestId, choice: int, text: str, *, token_count: int) -> None:
        rows.requests.append(request)
        rows.choices.append(choice)
        rows.texts.append(text)
        rows.prompts.append(None)
        rows.token_counts.append(token_count)
        rows.finish_reasons.append(FinishReason.RUNNING)
        rows.matched_stops.append(None)
