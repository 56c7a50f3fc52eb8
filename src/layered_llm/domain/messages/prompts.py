"""What a client may ask to be continued: a conversation, a text, or token ids.

Must not know: JSON names, templates, tokenizers.
"""

from collections.abc import Sequence
from typing import Final

import attrs

from layered_llm.domain.columns import pack_i32, packed
from layered_llm.domain.errors import ParameterError

WHOLE_CONTEXT: Final = -1
"""For `Prompt.keep_last_tokens`: as many as leave room for the output."""
MAX_TURNS: Final = 8192
"""Of a conversation, calls of tools counted as turns: each costs some 5 µs on its way, however empty it is. As many text
parts and documents."""


@attrs.frozen(kw_only=True)
class ToolCall:
    """A call that the assistant made in an earlier turn."""

    name: str
    arguments: str
    """A JSON object, as text: a message can carry no value of any shape."""
    id: str | None = None


@attrs.frozen(kw_only=True)
class ChatMessage:
    """One turn of a conversation, as a chat template sees it."""

    role: str
    content: str | None
    name: str | None = None
    reasoning: str | None = None
    """What the assistant thought before it answered, where the client sends it back."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """The call that a tool's turn answers."""


@attrs.frozen(kw_only=True)
class Rendering:
    """How a template turns a conversation into text. Raises ParameterError for what contradicts itself."""

    add_generation_prompt: bool = True
    """Whether the text ends with the beginning of the assistant's next turn."""
    continue_final_message: bool = False
    """Whether the text ends within the last turn, so that the output goes on with it."""
    variables: str | None = None
    """A JSON object, as text: what the template is given by name besides the conversation."""

    def __attrs_post_init__(self) -> None:
        if self.add_generation_prompt and self.continue_final_message:
            message = "continue_final_message goes on with the last turn: add_generation_prompt, for a new one, must be false"
            raise ParameterError("continue_final_message", message)


NEXT_TURN: Final = Rendering()


@attrs.frozen(kw_only=True)
class Prompt:
    """Exactly one of the first three is set; build it with the class methods. Raises ParameterError for too many turns.

    One class and not a union, since the codec can decode a closed set of classes by tag, but no union inside of a message.
    """

    chat: tuple[ChatMessage, ...] | None = None
    text: str | None = None
    token_ids: bytes | None = attrs.field(default=None, validator=attrs.validators.optional(packed("i")))
    rendering: Rendering = NEXT_TURN
    """Of `chat`."""
    add_special_tokens: bool | None = None
    """Whether the tokens that the tokenizer has for a text's beginning and end are added.

    None: to a plain text, and not to a conversation, whose template has them.
    """
    keep_last_tokens: int | None = None
    """A longer prompt loses its beginning; WHOLE_CONTEXT, or at least 1."""
    keeps_beginning: bool = False
    """A longer prompt loses its end instead."""

    def __attrs_post_init__(self) -> None:
        if (self.chat, self.text, self.token_ids).count(None) != 2:
            raise ValueError("a prompt is exactly one of chat, text and token_ids")
        if self.keep_last_tokens is not None and self.keep_last_tokens < 1 and self.keep_last_tokens != WHOLE_CONTEXT:
            raise ValueError("keep_last_tokens is WHOLE_CONTEXT or at least 1")
        turns = len(self.chat or ())
        for turn in self.chat or ():
            turns += len(turn.tool_calls)
        if turns > MAX_TURNS:
            message = f"messages holds {turns} messages and calls of tools together, at most {MAX_TURNS} are allowed"
            raise ParameterError("messages", message)

    @classmethod
    def of_chat(cls, messages: Sequence[ChatMessage], rendering: Rendering = NEXT_TURN) -> "Prompt":
        return cls(chat=tuple(messages), rendering=rendering)

    @classmethod
    def of_text(cls, text: str) -> "Prompt":
        return cls(text=text)

    @classmethod
    def of_token_ids(cls, token_ids: Sequence[int]) -> "Prompt":
        """Raises OverflowError for an id that is no signed 32-bit integer."""
        return cls(token_ids=pack_i32(token_ids))
