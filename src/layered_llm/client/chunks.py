"""One chunk of a streamed chat or text completion, as values.

Must not know: SSE, HTTP, which of the two endpoints sent it.

Fields that a server leaves out or sets to null have their empty value; a field of the wrong type raises MalformedStream.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from layered_llm.client.errors import MalformedStream


@attrs.frozen(kw_only=True)
class Usage:
    """The server's own token counts for the whole request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """Prompt tokens that came from a prefix cache; None when the server does not say."""


@attrs.frozen(kw_only=True)
class ToolCallDelta:
    """A piece of one tool call: pieces with the same index belong together, their arguments concatenate to JSON."""

    index: int
    id: str
    name: str
    arguments: str


@attrs.frozen(kw_only=True)
class ChoiceDelta:
    """What one chunk adds to one choice. It may hold several tokens, or none."""

    index: int
    text: str
    reasoning: str
    tool_calls: tuple[ToolCallDelta, ...]
    finish_reason: str | None

    @property
    def has_output(self) -> bool:
        """Whether the model wrote something here: a chunk with the role alone, or with the end alone, is no output."""
        return bool(self.text or self.reasoning or self.tool_calls)


@attrs.frozen(kw_only=True)
class StreamChunk:
    """One event of a completion stream."""

    id: str
    model: str
    choices: tuple[ChoiceDelta, ...]
    usage: Usage | None
    raw: Mapping[str, Any]
    """The chunk as it was sent, for the fields that have no name here (logprobs, vendors' extensions)."""

    @property
    def text(self) -> str:
        """New text of the first choice."""
        return "".join(choice.text for choice in self.choices if choice.index == 0)

    @property
    def has_output(self) -> bool:
        return any(choice.has_output for choice in self.choices)

    @property
    def has_finish(self) -> bool:
        return any(choice.finish_reason is not None for choice in self.choices)


def read_chunk(value: object) -> StreamChunk:
    """Raises MalformedStream for a value that is no completion chunk."""
    chunk = _mapping(value, "chunk")
    usage = chunk.get("usage")
    return StreamChunk(
        id=_text(chunk, "id"),
        model=_text(chunk, "model"),
        choices=tuple(_read_choice(choice) for choice in _items(chunk, "choices")),
        usage=None if usage is None else _read_usage(_mapping(usage, "usage")),
        raw=chunk,
    )


def _read_choice(value: object) -> ChoiceDelta:
    choice = _mapping(value, "choice")
    delta = _mapping(choice.get("delta") or {}, "delta")
    return ChoiceDelta(
        index=_integer(choice, "index"),
        text=_text(delta, "content") or _text(choice, "text"),
        reasoning=_text(delta, "reasoning_content") or _text(delta, "reasoning"),
        tool_calls=tuple(_read_tool_call(call) for call in _items(delta, "tool_calls")),
        finish_reason=_text(choice, "finish_reason") or None,
    )


def _read_tool_call(value: object) -> ToolCallDelta:
    call = _mapping(value, "tool call")
    function = _mapping(call.get("function") or {}, "function")
    return ToolCallDelta(
        index=_integer(call, "index"),
        id=_text(call, "id"),
        name=_text(function, "name"),
        arguments=_text(function, "arguments"),
    )


def _read_usage(usage: Mapping[str, Any]) -> Usage:
    details = _mapping(usage.get("prompt_tokens_details") or {}, "prompt_tokens_details")
    return Usage(
        prompt_tokens=_integer(usage, "prompt_tokens"),
        completion_tokens=_integer(usage, "completion_tokens"),
        cached_tokens=None if details.get("cached_tokens") is None else _integer(details, "cached_tokens"),
    )


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise MalformedStream(f"{what}: expected an object, got {value!r:.200}")


def _items(parent: Mapping[str, Any], key: str) -> list[Any]:
    value = parent.get(key)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise MalformedStream(f"{key}: expected a list, got {value!r:.200}")


def _text(parent: Mapping[str, Any], key: str) -> str:
    value = parent.get(key)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise MalformedStream(f"{key}: expected text, got {value!r:.200}")


def _integer(parent: Mapping[str, Any], key: str) -> int:
    value = parent.get(key)
    if value is None:
        return 0
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise MalformedStream(f"{key}: expected an integer, got {value!r:.200}")
