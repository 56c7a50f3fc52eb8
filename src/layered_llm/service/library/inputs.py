"""A caller's prompts and parameters as the domain's values, checked before anything is submitted.

Must not know: the engine, tokenizers, templates.

Everything that leaves this module can be encoded: text is Unicode without lone surrogates, numbers and strings are of the plain
types, and no prompt is longer than a message may be. Whatever cannot is a ParameterError that names the place.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.errors import ParameterError, shown
from layered_llm.domain.messages.api_text import MAX_TOLD_TOKENS
from layered_llm.domain.messages.prompts import ChatMessage, Prompt, ToolCall
from layered_llm.domain.sampling import TOKENS_LIMIT, SamplingParams

Message: TypeAlias = ChatMessage | Mapping[str, object]
"""A turn: {"role": …, "content": …}, and a "name" where the chat template knows one."""
PromptLike: TypeAlias = str | Sequence[Message] | Sequence[int]
"""A text, a conversation, or token ids."""

MAX_PROMPT_BYTES: Final = 32 << 20
"""Half of what a message may have, and far above what any context holds."""
_MESSAGE_BYTES: Final = 64
"""More than the frame around one turn needs."""
_TOKEN_BYTES: Final = 4
_KEYS: Final = ("role", "content", "name")
"""Of a message that is no ChatMessage."""
_OPTIONAL_TEXTS: Final = ("name", "reasoning", "tool_call_id")
_FLOATS: Final = (float, float | None)


def to_prompt(value: PromptLike, param: str = "prompt") -> Prompt:
    """`value` as the engine takes it. Raises ParameterError, which calls it `param`."""
    if isinstance(value, str):
        text = _text(value, param)
        _check_size(len(text.encode()), param)
        return Prompt.of_text(text)
    if not isinstance(value, list | tuple):
        raise ParameterError(param, f"{param} must be a text, a list of messages or a list of token ids, got {shown(value)}")
    if not value:
        raise ParameterError(param, f"{param} must not be empty: neither a list of messages nor one of token ids may be")
    if is_message(value[0]):
        return _chat(value, param)
    return _token_ids(value, param)


def is_message(value: object) -> bool:
    """Whether a list that begins with `value` is a conversation."""
    return isinstance(value, ChatMessage | Mapping)


def as_prompts(value: PromptLike | Sequence[PromptLike]) -> list[PromptLike]:
    """The prompts in `value`, unchecked: a text, a conversation and a list of token ids are one, any other list is several."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple):
        raise ParameterError("prompts", f"prompts must be a prompt or a list of prompts, got {shown(value)}")
    is_one = bool(value) and (is_message(value[0]) or _is_int(value[0]))
    return [value] if is_one else list(value)


def as_conversations(value: Sequence[Message] | Sequence[Sequence[Message]]) -> list[PromptLike]:
    """As `as_prompts`, where nothing but conversations is allowed. Raises ParameterError."""
    conversations = as_prompts(value)
    for place, conversation in enumerate(conversations):
        if not (isinstance(conversation, list | tuple) and conversation and is_message(conversation[0])):
            raise ParameterError(f"messages[{place}]", f"messages[{place}] must be a conversation: a list of messages")
    return conversations


def to_prompts(values: Sequence[PromptLike]) -> tuple[Prompt, ...]:
    """All of them, or ParameterError for the first that cannot be taken."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ParameterError("prompts", f"prompts must be a list of prompts, got {shown(values)}")
    return tuple(to_prompt(value, f"prompts[{place}]") for place, value in enumerate(values))


def to_params(value: SamplingParams | None, param: str = "params") -> SamplingParams:
    """`value` in plain types; the defaults for None. Raises ParameterError for what SamplingParams itself lets pass."""
    if value is None:
        return SamplingParams()
    if not isinstance(value, SamplingParams):
        raise ParameterError(param, f"{param} must be SamplingParams, got {shown(value)}")
    fields = attrs.fields(SamplingParams)
    return SamplingParams(**{field.name: _plain(field, getattr(value, field.name)) for field in fields})


def _plain(field: "attrs.Attribute[Any]", value: object) -> Any:
    """What the codec can encode, a float where one is meant."""
    plain = _plain_value(value, field.name)
    return float(plain) if isinstance(plain, int) and field.type in _FLOATS else plain


def _plain_value(value: object, param: str) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case list() | tuple():
            return tuple(_plain_value(item, param) for item in value)
        case _:
            return _text(value, param)


def to_all_params(value: SamplingParams | Sequence[SamplingParams] | None, count: int) -> tuple[SamplingParams, ...]:
    """The parameters of `count` prompts: one for all of them, or one for each. Raises ParameterError."""
    if value is None or not isinstance(value, list | tuple):
        return (to_params(value),) * count  # type: ignore[arg-type] # to_params refuses what is no SamplingParams
    if len(value) != count:
        raise ParameterError("params", f"params has {len(value)} items for {count} prompts: give one for all, or one for each")
    return tuple(to_params(item, f"params[{place}]") for place, item in enumerate(value))


def _chat(values: Sequence[object], param: str) -> Prompt:
    messages = tuple(_message(value, f"{param}[{place}]") for place, value in enumerate(values))
    _check_size(sum(_message_bytes(message) for message in messages), param)
    return Prompt.of_chat(messages)


def _message(value: object, param: str) -> ChatMessage:
    if isinstance(value, ChatMessage):
        return _checked(attrs.asdict(value, recurse=False), param)
    if not isinstance(value, Mapping):
        raise ParameterError(param, f"{param} must be a message like the first item, got {shown(value)}")
    for key in value:
        if key not in _KEYS:
            raise ParameterError(f"{param}.{key}", f"{param} has the key {key!r}; a message has {', '.join(_KEYS)}")
    return _checked(value, param)


def _checked(fields: Mapping[str, Any], param: str) -> ChatMessage:
    role = _text(fields.get("role"), f"{param}.role")
    if not role:
        raise ParameterError(f"{param}.role", f"{param}.role must not be empty")
    return ChatMessage(
        role=role,
        content=_content(fields.get("content"), role, f"{param}.content"),
        tool_calls=_tool_calls(fields.get("tool_calls", ()), f"{param}.tool_calls"),
        **{name: _optional_text(fields.get(name), f"{param}.{name}") for name in _OPTIONAL_TEXTS},
    )


def _tool_calls(values: object, param: str) -> tuple[ToolCall, ...]:
    if not isinstance(values, list | tuple):
        raise ParameterError(param, f"{param} must be a list of ToolCalls, got {shown(values)}")
    return tuple(_tool_call(call, f"{param}[{at}]") for at, call in enumerate(values))


def _tool_call(value: object, param: str) -> ToolCall:
    if not isinstance(value, ToolCall):
        raise ParameterError(param, f"{param} must be a ToolCall, got {shown(value)}")
    return ToolCall(
        name=_text(value.name, f"{param}.name"),
        arguments=_text(value.arguments, f"{param}.arguments"),
        id=_optional_text(value.id, f"{param}.id"),
    )


def _optional_text(value: object, param: str) -> str | None:
    return None if value is None else _text(value, param)


def _content(value: object, role: str, param: str) -> str | None:
    return None if value is None and role == "assistant" else _text(value, param)


def _message_bytes(message: ChatMessage) -> int:
    called = [text for call in message.tool_calls for text in (call.name, call.arguments, call.id)]
    texts = (message.role, message.content, message.name, message.reasoning, message.tool_call_id, *called)
    return _MESSAGE_BYTES * (1 + len(message.tool_calls)) + sum(len(text.encode()) for text in texts if text)


def to_token_ids(values: Sequence[int], param: str = "token_ids") -> bytes:
    """Ids, which may be none, packed. Raises ParameterError."""
    if not isinstance(values, list | tuple):
        raise ParameterError(param, f"{param} must be a list of token ids, got {shown(values)}")
    if len(values) > MAX_TOLD_TOKENS:
        raise ParameterError(param, f"{param} holds {len(values)} token ids, at most {MAX_TOLD_TOKENS} are taken")
    return pack_i32(_token_id(value, f"{param}[{place}]") for place, value in enumerate(values))


def _token_ids(values: Sequence[object], param: str) -> Prompt:
    _check_size(_TOKEN_BYTES * len(values), param)
    return Prompt.of_token_ids([_token_id(value, f"{param}[{place}]") for place, value in enumerate(values)])


def _token_id(value: object, param: str) -> int:
    if not _is_int(value):
        raise ParameterError(param, f"{param} must be a token id, got {shown(value)}")
    token = operator.index(value)  # type: ignore[arg-type] # it has __index__
    if not 0 <= token < TOKENS_LIMIT:
        raise ParameterError(param, f"{param} must be between 0 and {TOKENS_LIMIT - 1}, got {shown(token)}")
    return token


def _is_int(value: object) -> bool:
    """Also those of other libraries, which say by `__index__` that they are whole numbers."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _text(value: object, param: str) -> str:
    """`value` as a plain string."""
    if not isinstance(value, str):
        raise ParameterError(param, f"{param} must be a string, got {shown(value)}")
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(param, f"{param} holds a lone surrogate at character {error.start}") from None
    return value if type(value) is str else encoded.decode()


def _check_size(size_bytes: int, param: str) -> None:
    if size_bytes > MAX_PROMPT_BYTES:
        raise ParameterError(param, f"{param} has {size_bytes} bytes, at most {MAX_PROMPT_BYTES} are taken")
