"""The `messages` of a chat body as turns of a conversation.

Must not know: templates, which roles a model was trained on.

A template sees strings only: a list of text parts is joined by line breaks, as vLLM and llama.cpp do it.
"""

from typing import Final

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.transport.http.openai_schema import fields as read

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def parse_messages(value: object) -> tuple[ChatMessage, ...]:
    """At least one turn. Raises ParameterError."""
    if value is None:
        raise ParameterError("messages", "messages is required")
    if not isinstance(value, list):
        raise read.wrong_type("messages", "a list", value)
    if not value:
        raise ParameterError("messages", "messages must not be empty")
    return tuple(_message(f"messages[{place}]", item) for place, item in enumerate(value))


def _message(param: str, item: object) -> ChatMessage:
    if not isinstance(item, dict):
        raise read.wrong_type(param, "an object", item)
    role = _role(param, item)
    if item.get("tool_calls") or item.get("function_call"):
        raise ParameterError(f"{param}.tool_calls", f"{param}.tool_calls is not supported by this server")
    name = item.get("name")
    return ChatMessage(
        role=role,
        content=_content(f"{param}.content", item.get("content"), role),
        name=None if name is None else read.text(f"{param}.name", name),
    )


def _role(param: str, item: read.JsonObject) -> str:
    role = item.get("role")
    if role not in ROLES:
        raise ParameterError(f"{param}.role", f"{param}.role must be one of {', '.join(ROLES)}, got {read.shown(role)}")
    return str(role)


def _content(param: str, value: object, role: str) -> str | None:
    match value:
        case None if role == "assistant":
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
