"""Conversations rendered to text by a checkpoint's own Jinja template.

Must not know: tokens, HTTP, the machine's clock (it is passed in).

Where a template does not know the role "developer", OpenAI's newer name of it, the turn is a system turn, since many templates
drop roles that they do not know without a word.

Invariant: whatever a template raises, the caller gets a text or a TemplateFailed. How long it takes and how much memory is for
whoever calls to bound: a template that is not one's own is rendered in a process of its own (`service`).
"""

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from layered_llm.domain.messages.prompts import NEXT_TURN, ChatMessage, Rendering, ToolCall

if TYPE_CHECKING:  # imported where a template is compiled: a text worker only names them
    import jinja2

Clock = Callable[[], dt.datetime]

_TESTS_CONTENT_FOR_NULL: Final = re.compile(r"content['\"\]]*\s+is\s+(?:not\s+)?none", re.IGNORECASE)
_MESSAGE_CHARS: Final = 500
"""Of what a template says of itself: it may repeat a conversation of megabytes, and its refusal counts for no budget."""
_END_MARK: Final = "[[the-last-message-goes-on-here]] "
"""Put after the message that is to be continued. A template that trims its messages takes the space, which shows it."""


@attrs.frozen(kw_only=True)
class TemplateFailed:
    """The template refused the conversation or is broken."""

    message: str


class ChatTemplate:
    """One template with the variables of its checkpoint, compiled at its first use. Any thread may render at any time."""

    def __init__(self, source: str, *, variables: Mapping[str, str], clock: Clock) -> None:
        """`variables` are bos_token, eos_token and the like; a source that does not compile fails at each rendering."""
        self.source: Final = source
        self.variables: Final = dict(variables)
        self.clock: Final = clock
        self._knows_null = _TESTS_CONTENT_FOR_NULL.search(source) is not None
        self._knows_developer = "developer" in source
        self._compiled: jinja2.Template | TemplateFailed | None = None

    def compile(self) -> "jinja2.Template | TemplateFailed":
        """The template as a program; what a source costs here and at rendering is up to its author."""
        if self._compiled is None:
            from layered_llm.text.template_environment import template_environment  # noqa: PLC0415 - see above

            try:
                self._compiled = template_environment(self.clock).from_string(self.source)
            except Exception as error:  # noqa: BLE001 - the parser raises more than its own errors, such as RecursionError
                self._compiled = _failure(error)
        return self._compiled

    def render(self, messages: Sequence[ChatMessage], rendering: Rendering = NEXT_TURN) -> str | TemplateFailed:
        """The conversation as text, with all special tokens that it needs."""
        template = self.compile()
        if isinstance(template, TemplateFailed):
            return template
        if rendering.continue_final_message and not (messages and messages[-1].content):
            return TemplateFailed(message="the last message has no content that could be continued")
        try:
            turns = list(map(self._turn, messages))
            if rendering.continue_final_message:
                turns[-1]["content"] += _END_MARK
            asked = json.loads(rendering.variables or "{}")
            variables = {"tools": None, "documents": None} | self.variables | asked
            text = template.render(variables, messages=turns, add_generation_prompt=rendering.add_generation_prompt)
        except Exception as error:  # noqa: BLE001 - a template is a foreign program: it may raise anything
            return _failure(error)
        return _cut(text, messages[-1].content or "") if rendering.continue_final_message else text

    def _turn(self, message: ChatMessage) -> dict[str, Any]:
        """A message as templates index it: a key is there only where it has a value, as in transformers."""
        role = "system" if message.role == "developer" and not self._knows_developer else message.role
        # Most templates concatenate the content, whatever it is; some know a turn of calls alone by its being null.
        is_null = message.content is None and message.tool_calls and self._knows_null
        turn: dict[str, Any] = {"role": role, "content": None if is_null else message.content or ""}
        if message.name is not None:
            turn["name"] = message.name
        if message.reasoning is not None:
            turn |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
        if message.tool_calls:
            turn["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            turn["tool_call_id"] = message.tool_call_id
        return turn


def _tool_call(call: ToolCall) -> dict[str, Any]:
    """Templates write the arguments as JSON themselves, so that they get the object."""
    function = {"name": call.name, "arguments": json.loads(call.arguments)}
    return {"type": "function", "function": function} | ({} if call.id is None else {"id": call.id})


def _cut(text: str, content: str) -> str | TemplateFailed:
    """`text` up to the end of the last message's `content`, as far as the template shows it."""
    place = text.rfind(_END_MARK.rstrip())
    if place < 0 or content.strip() not in text[:place]:
        return TemplateFailed(message="it does not show the last message as it is, so that it cannot be continued")
    return text[:place] if text.startswith(_END_MARK, place) else text[:place].rstrip()


def _failure(error: Exception) -> TemplateFailed:
    import jinja2  # noqa: PLC0415 - which is there when a template fails

    text = str(error)[:_MESSAGE_CHARS]
    if isinstance(error, MemoryError):
        return TemplateFailed(message="it needs too much memory")
    if isinstance(error, jinja2.TemplateError) and text:
        return TemplateFailed(message=text)
    return TemplateFailed(message=f"{type(error).__name__}: {text}" if text else type(error).__name__)
