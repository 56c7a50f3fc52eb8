"""What a client may ask to be continued: a conversation, a text, or token ids.

Must not know: JSON names, templates, tokenizers.
"""

from collections.abc import Sequence

import attrs

from layered_llm.domain.columns import pack_i32, packed


@attrs.frozen(kw_only=True)
class ChatMessage:
    """One turn of a conversation, as a chat template sees it."""

    role: str
    content: str | None
    name: str | None = None


@attrs.frozen(kw_only=True)
class Prompt:
    """Exactly one of the three is set; build it with the class methods.

    One class and not a union, since the codec can decode a closed set of classes by tag, but no union inside of a message.
    """

    chat: tuple[ChatMessage, ...] | None = None
    text: str | None = None
    token_ids: bytes | None = attrs.field(default=None, validator=attrs.validators.optional(packed("i")))

    def __attrs_post_init__(self) -> None:
        if sum(part is not None for part in (self.chat, self.text, self.token_ids)) != 1:
            raise ValueError("a prompt is exactly one of chat, text and token_ids")

    @classmethod
    def of_chat(cls, messages: Sequence[ChatMessage]) -> "Prompt":
        return cls(chat=tuple(messages))

    @classmethod
    def of_text(cls, text: str) -> "Prompt":
        return cls(text=text)

    @classmethod
    def of_token_ids(cls, token_ids: Sequence[int]) -> "Prompt":
        """Raises OverflowError for an id that is no signed 32-bit integer."""
        return cls(token_ids=pack_i32(token_ids))
