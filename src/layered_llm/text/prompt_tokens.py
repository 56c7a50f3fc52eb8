"""From a prompt of any kind to the ids of its tokens.

Must not know: which requests are open, sampling, queues.

Invariant: reads only what never changes, so that it may run in any thread.
"""

from array import array
from typing import Final, Self

import attrs

from layered_llm.domain.columns import rows, unpack_i32
from layered_llm.domain.ids import RequestId
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.prompts import WHOLE_CONTEXT, ChatMessage, Prompt
from layered_llm.domain.verdicts import RejectReason
from layered_llm.text.chat_template import TemplateFailed
from layered_llm.text.checkpoint_text import TextFiles
from layered_llm.text.tokenizer import CannotEncode

_MOST_CONTEXTS_CUT: Final = 8
"""So many contexts long may a text be that is cut to one: all of it has to be tokenized."""
_MESSAGE_COST_CHARS: Final = 40
_IDS_PER_CHAR: Final = 8


@attrs.frozen
class PromptReader:
    """Turns a request's prompt into tokens by a checkpoint's files."""

    request: RequestId
    files: TextFiles
    limits: EngineLimits
    _rendered: str | TemplateFailed | None = None
    """What the template makes of a conversation, where it was rendered elsewhere."""
    incarnation: int = 0
    """Of the request; 0 of a question."""

    def conversation(self, prompt: Prompt) -> Prompt | None:
        """The prompt, where its text is what a template makes of it."""
        return prompt if prompt.chat is not None and self.files.template is not None else None

    def chars(self, prompt: Prompt) -> int:
        """What the work for a prompt is in proportion to: where it was rendered, to the text; nothing is done without one."""
        if self._rendered is not None:
            return len(self._rendered) if isinstance(self._rendered, str) else 0
        ids = rows("i", prompt.token_ids or b"")
        work = len(prompt.text or "") + len(prompt.rendering.variables or "") + ids // _IDS_PER_CHAR
        for message in prompt.chat or ():
            work += message_chars(message) + _MESSAGE_COST_CHARS
        return work

    def reject(self, reason: RejectReason, message: str, param: str) -> Rejected:
        return Rejected(request=self.request, reason=reason, message=message, param=param, incarnation=self.incarnation)

    def tokens(
        self, prompt: Prompt, *, output_tokens: int = 1, least_output: int = 1, most_tokens: int | None = None
    ) -> "array[int] | Rejected":
        """The prompt's ids, of those of a longer one the last `keep_last_tokens`, or the first.

        Nothing is judged of them but a text that surely exceeds the context, which is not worth its tokenizing.
        With `most_tokens` it may have so many, whatever the context. `output_tokens` is the room to leave for the output where
        a prompt may have what is left of the context, `least_output` the room that any prompt has to leave.
        """
        if most_tokens is None:
            contexts = 1 if prompt.keep_last_tokens is None else _MOST_CONTEXTS_CUT
            most_tokens = contexts * self.limits.context_tokens - least_output
        ids = self._all_tokens(prompt, most_tokens, least_output)
        if isinstance(ids, Rejected) or prompt.keep_last_tokens is None:
            return ids
        room = max(1, self.limits.context_tokens - output_tokens)
        kept = room if prompt.keep_last_tokens == WHOLE_CONTEXT else prompt.keep_last_tokens
        return ids[:kept] if prompt.keeps_beginning else ids[-kept:]

    def text(self, prompt: Prompt) -> str | Rejected:
        """The text of a prompt that is no list of ids: of a conversation, what its template makes of it."""
        if prompt.chat is None:
            return prompt.text or ""
        if self.files.template is None:
            message = "This model has no chat template; use completions, which need none."
            return self.reject(RejectReason.NO_CHAT_TEMPLATE, message, "messages")
        rendered = self._rendered
        if rendered is None:
            rendered = self.files.template.render(prompt.chat, prompt.rendering)
        if isinstance(rendered, TemplateFailed):
            message = f"The model's chat template cannot render these messages: {_harmless(rendered.message)}"
            return self.reject(RejectReason.TEMPLATE_ERROR, message, "messages")
        return rendered

    def too_long(self, prompt: Prompt, tokens: str, least_output: int = 1) -> Rejected:
        """The verdict on a prompt of so many `tokens`, in words."""
        room = "; it must leave room for at least one token of output" if least_output else ""
        message = (
            f"This model's maximum context length is {self.limits.context_tokens} tokens, but the prompt has {tokens} "
            f"tokens{room}."
        )
        return self.reject(RejectReason.CONTEXT_LENGTH_EXCEEDED, message, prompt_param(prompt))

    def _all_tokens(self, prompt: Prompt, most_tokens: int, least_output: int) -> "array[int] | Rejected":
        if prompt.token_ids is not None:
            return unpack_i32(prompt.token_ids)
        text = self.text(prompt)
        if isinstance(text, Rejected):
            return text
        tokenizer = self.files.tokenizer
        least_tokens = 0 if tokenizer.bound is None else tokenizer.bound.least_tokens(text)
        if least_tokens > most_tokens:
            return self.too_long(prompt, f"at least {least_tokens}", least_output)
        adds_special = prompt.chat is None if prompt.add_special_tokens is None else prompt.add_special_tokens
        try:
            return array("i", tokenizer.encode(text, add_special_tokens=adds_special))
        except CannotEncode as error:
            message = f"The text cannot be turned into tokens: {error}."
            return self.reject(RejectReason.INVALID_PARAMETER, message, prompt_param(prompt))


@attrs.frozen(kw_only=True)
class PromptWork:
    """What all work for a message has in common. It is forgotten half-way without any effect."""

    request: RequestId
    tenant: str
    conversation: Prompt | None
    """What the template has to render first, by whoever bounds what that costs; the work does it where nobody did."""
    _reader: PromptReader

    @property
    def incarnation(self) -> int:
        """Of the request; 0 of a question."""
        return self._reader.incarnation

    def with_rendered(self, rendered: str | TemplateFailed) -> Self:
        """The same work, when the template has rendered the conversation."""
        return attrs.evolve(self, conversation=None, reader=attrs.evolve(self._reader, rendered=rendered))


def prompt_param(prompt: Prompt) -> str:
    """The field that holds a prompt."""
    return "prompt" if prompt.chat is None else "messages"


def message_chars(message: ChatMessage) -> int:
    """Characters of a turn, its role not counted."""
    words = [message.content, message.name, message.reasoning, message.tool_call_id]
    for call in message.tool_calls:
        words += (call.name, call.arguments, call.id)
    return sum(map(len, filter(None, words)))


def _harmless(words: str) -> str:
    """A template may quote the client's lone surrogates, which no message can carry."""
    return words.encode(errors="replace").decode()
