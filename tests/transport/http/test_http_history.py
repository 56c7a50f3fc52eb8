import json
from typing import Any

import pytest

from layered_llm.domain.messages.prompts import ChatMessage, ToolCall
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.openai.schema.requests import GenerationRequest, parse_chat

USER = {"role": "user", "content": "6 * 7?"}


def turns(*messages: dict[str, Any]) -> tuple[ChatMessage, ...] | None:
    parsed = parse_chat(json.dumps({"messages": messages}).encode())
    assert isinstance(parsed, GenerationRequest), parsed
    return parsed.prompts[0].chat


def wrong(*messages: dict[str, Any]) -> str | None:
    parsed = parse_chat(json.dumps({"messages": messages}).encode())
    assert isinstance(parsed, ApiError), parsed
    return parsed.param


def calling(arguments: object, **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": arguments}, **fields}]}


def test_calls_and_their_answers_are_turns() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}}
    history = turns(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "42"}], "tool_call_id": "c1", "name": "multiply"},
    )

    assert history is not None
    assert history[1:] == (
        ChatMessage(
            role="assistant",
            content=None,
            tool_calls=(ToolCall(id="c1", name="multiply", arguments='{"a": 6, "b": 7}'),),
        ),
        ChatMessage(role="tool", content="42", name="multiply", tool_call_id="c1"),
    )


@pytest.mark.parametrize(("arguments", "expected"), [("", "{}"), (None, "{}"), ({"a": [1]}, '{"a": [1]}'), ('{"é": 1}', None)])
def test_arguments_are_one_object_however_they_come(arguments: object, expected: str | None) -> None:
    history = turns(USER, calling(arguments))

    assert history is not None
    assert json.loads(expected or str(arguments)) == json.loads(history[1].tool_calls[0].arguments)


DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize("arguments", ["{", "[1]", "5", '"x"', 5, [1], False, '{"a": NaN}', '{"a": 1e400}', DEEP, "9" * 5000])
def test_arguments_that_are_no_object_are_named(arguments: object) -> None:
    assert wrong(USER, calling(arguments)) == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": 5}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
        (calling("{}", type="custom"), "messages[0].tool_calls[0].type"),
        (calling("{}", id=5), "messages[0].tool_calls[0].id"),
        ({**calling("{}"), "role": "user", "content": "x"}, "messages[0].tool_calls"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages[0].tool_call_id"),
        ({"role": "assistant", "content": "x", "reasoning_content": 5}, "messages[0].reasoning_content"),
    ],
)
def test_a_wrong_call_is_named_by_its_place(message: dict[str, Any], param: str) -> None:
    assert wrong(message) == param


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_that_come_back_are_kept(name: str) -> None:
    history = turns(USER, {"role": "assistant", "content": "42", name: "6 * 7 is 42", "annotations": [], "refusal": None})

    assert history is not None
    assert history[1] == ChatMessage(role="assistant", content="42", reasoning="6 * 7 is 42")
