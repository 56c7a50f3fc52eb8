"""The `messages` of a chat body as turns of a conversation.

Must not know: templates, which roles a model was trained on.

A template sees strings only: a list of text parts is joined by line breaks, as vLLM and llama.cpp do it.
"""

from collections.abc import Sequence
from typing import Final

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.messages.prompts import MAX_TURNS, ChatMessage, ToolCall
from layered_llm.transport.http.exchange.json_schema import one_of
from layered_llm.transport.http.openai.schema import fields as read
from layered_llm.transport.http.openai.schema.fields import Json
from layered_llm.transport.http.openai.schema.unsupported import Neutral, refuse

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_REASONING: Final = ("reasoning_content", "reasoning")
"""What servers of the family call the thoughts that come with an answer; the first that is there counts."""
_NULLABLE_STRING: Final[Json] = {"type": ["string", "null"]}
_TOOL_CALL: Final[Json] = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "id": _NULLABLE_STRING,
        "type": {"enum": ["function", None]},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "arguments": {"type": ["string", "object", "null"]}},
        },
    },
}
_TEXT_PART: Final[Json] = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_REFUSED: Final[Neutral] = {"audio": (), "partial": (False,), "prefix": (False,), "refusal": ("",), "tools": ([],)}
"""Members of a turn that other servers put into the prompt: what they said by voice or refused to say, tools of one turn, and a
turn that is to be continued, for which continue_final_message is a field of the body."""
_UNSUPPORTED: Final[Json] = {name: one_of(*neutral, None) for name, neutral in _REFUSED.items()}
_CONTENT: Final[Json] = {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART, "maxItems": MAX_TURNS}]}
_ASSISTANT: Final = "assistant"
_TURN: Final[Json] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": [role for role in ROLES if role != _ASSISTANT]},
        "content": _CONTENT,
        "name": _NULLABLE_STRING,
        "tool_calls": {"anyOf": [{"type": "array", "maxItems": 0}, {"type": "null"}]},
        "tool_call_id": _NULLABLE_STRING,
        **_UNSUPPORTED,
    },
}
_TURN_OF_THE_ASSISTANT: Final[Json] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"const": _ASSISTANT},
        "content": {"anyOf": [*_CONTENT["anyOf"], {"type": "null"}]},
        "name": _NULLABLE_STRING,
        "tool_calls": {"anyOf": [{"type": "array", "items": _TOOL_CALL}, {"type": "null"}]},
        "tool_call_id": _NULLABLE_STRING,
        **dict.fromkeys(_REASONING, _NULLABLE_STRING),
        **_UNSUPPORTED,
    },
}
MESSAGES_SCHEMA: Final[Json] = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_TURNS,
    "items": {"anyOf": [_TURN, _TURN_OF_THE_ASSISTANT]},
}


def parse_messages(param: str, value: object) -> tuple[ChatMessage, ...]:
    """At least one turn. Raises ParameterError."""
    if not isinstance(value, list):
        raise read.wrong_type(param, "a list", value)
    if not value:
        raise ParameterError(param, f"{param} must not be empty")
    read.at_most(param, value, MAX_TURNS)
    _check_parts(param, value)
    return tuple(_message(f"{param}[{place}]", item) for place, item in enumerate(value))


def _check_parts(param: str, turns: Sequence[object]) -> None:
    """A part costs as much as a turn, in however many turns they are."""
    parts = sum(len(content) for turn in turns if isinstance(turn, dict) and isinstance(content := turn.get("content"), list))
    if parts > MAX_TURNS:
        message = f"{param} holds {parts} text parts together, at most {MAX_TURNS} are allowed"
        raise ParameterError(f"{param}.content", message)


def _message(param: str, item: object) -> ChatMessage:
    fields = read.json_object(param, item)
    first, other = _REASONING
    role = _role(param, fields)
    try:
        refuse(fields, _REFUSED)
    except ParameterError as error:
        raise ParameterError(f"{param}.{error.param}", f"{param}.{error.message}") from None
    if fields.get("function_call"):
        raise ParameterError(f"{param}.function_call", f"{param}.function_call is out of use: give tool_calls")
    return ChatMessage(
        role=role,
        content=_content(f"{param}.content", fields.get("content"), role),
        name=_optional_text(param, fields, "name"),
        reasoning=_optional_text(param, fields, first) or _optional_text(param, fields, other) or None,
        tool_calls=_tool_calls(f"{param}.tool_calls", fields.get("tool_calls"), role),
        tool_call_id=_optional_text(param, fields, "tool_call_id"),
    )


def _optional_text(param: str, fields: read.JsonObject, name: str) -> str | None:
    value = fields.get(name)
    return None if value is None else read.text(f"{param}.{name}", value)


def _tool_calls(param: str, value: object, role: str) -> tuple[ToolCall, ...]:
    if value is None or value == []:
        return ()
    if not isinstance(value, list):
        raise read.wrong_type(param, "a list", value)
    if role != _ASSISTANT:
        raise ParameterError(param, f"{param} is for the role assistant, not for {role}")
    read.at_most(param, value, MAX_TURNS)
    return tuple(_tool_call(f"{param}[{place}]", call) for place, call in enumerate(value))


def _tool_call(param: str, value: object) -> ToolCall:
    call = read.json_object(param, value)
    kind = call.get("type")
    if kind not in (None, "function"):
        raise ParameterError(f"{param}.type", f"{param}.type must be 'function', got {read.shown(kind)}")
    function = read.json_object(f"{param}.function", call.get("function"))
    return ToolCall(
        id=_optional_text(param, call, "id"),
        name=read.text(f"{param}.function.name", function.get("name")),
        arguments=_arguments(f"{param}.function.arguments", function.get("arguments")),
    )


def _arguments(param: str, value: object) -> str:
    """OpenAI has a string that holds a JSON object; an object itself is taken too, and nothing for an empty one."""
    if isinstance(value, str) and value:
        value = read.decode_text(param, read.text(param, value))
    return read.encode_text(param, read.json_object(param, {} if value in (None, "") else value))


def _role(param: str, item: read.JsonObject) -> str:
    role = item.get("role")
    if role not in ROLES:
        raise ParameterError(f"{param}.role", f"{param}.role must be one of {', '.join(ROLES)}, got {read.shown(role)}")
    return str(role)


def _content(param: str, value: object, role: str) -> str | None:
    match value:
        case None if role == _ASSISTANT:
            return None
        case str():
            return read.text(param, value)
        case list():
            return "\n".join(_part(f"{param}[{place}]", part) for place, part in enumerate(value))
        case _:
            raise read.wrong_type(param, "a string or a list of text parts", value)


def _part(param: str, part: object) -> str:
    if not isinstance(part, dict):
        raise read.wrong_type(param, "an object", part)
    kind = part.get("type")
    if kind != "text":
        raise ParameterError(
            f"{param}.type", f"{param}.type must be 'text', other parts are not supported: got {read.shown(kind)}"
        )
    return read.text(f"{param}.text", part.get("text"))
