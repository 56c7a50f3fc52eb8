import json
from typing import Any

import pytest

from layered_llm.domain.messages.prompts import Prompt, Rendering
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.openai.schema.requests import GenerationRequest, parse_chat, parse_completion

MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def prompt(**fields: Any) -> Prompt:
    parsed = parse_chat(json.dumps({"messages": MESSAGES, **fields}).encode())
    assert isinstance(parsed, GenerationRequest), parsed
    return parsed.prompts[0]


def error(**fields: Any) -> ApiError:
    parsed = parse_chat(json.dumps({"messages": MESSAGES, **fields}).encode())
    assert isinstance(parsed, ApiError)
    return parsed


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Rendering()),
        ({"add_generation_prompt": False}, Rendering(add_generation_prompt=False)),
        ({"continue_final_message": True}, Rendering(add_generation_prompt=False, continue_final_message=True)),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            Rendering(add_generation_prompt=False, continue_final_message=True),
        ),
        ({"chat_template_kwargs": {"enable_thinking": False}}, Rendering(variables='{"enable_thinking": false}')),
        ({"documents": [{"text": "t"}]}, Rendering(variables='{"documents": [{"text": "t"}]}')),
    ],
)
def test_the_template_is_told_what_the_body_says(fields: dict[str, Any], expected: Rendering) -> None:
    assert prompt(**fields).rendering == expected


def test_a_new_turn_and_the_last_one_continued_exclude_each_other() -> None:
    refused = error(add_generation_prompt=True, continue_final_message=True)

    assert ("continue_final_message", "add_generation_prompt" in refused.message) == (refused.param, True)


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt", "chat_template"])
def test_kwargs_do_not_hold_what_has_a_field_of_its_own(name: str) -> None:
    assert error(chat_template_kwargs={name: 1}).param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"documents": {}}, "documents"),
        ({"documents": ["x"]}, "documents[0]"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "a b"}, "request_id"),
        ({"request_id": "é"}, "request_id"),
        ({"request_id": "x" * 129}, "request_id"),
    ],
)
def test_a_wrong_value_is_named(fields: dict[str, Any], param: str) -> None:
    assert error(**fields).param == param


def test_a_template_in_the_request_is_refused_with_the_reason() -> None:
    refused = error(chat_template="{{ messages }}")

    assert refused.param == "chat_template"
    assert "a template is a program" in refused.message


@pytest.mark.parametrize("field", ["add_generation_prompt", "continue_final_message", "chat_template_kwargs", "documents"])
def test_completions_have_no_template(field: str) -> None:
    value = {"chat_template_kwargs": {"a": 1}, "documents": [{}]}.get(field, field != "add_generation_prompt")
    parsed = parse_completion(json.dumps({"prompt": "x", field: value}).encode())

    assert isinstance(parsed, ApiError)
    assert parsed.param == field


def test_special_tokens_and_truncation_belong_to_each_prompt() -> None:
    body = {"prompt": ["a", "b"], "add_special_tokens": False, "truncate_prompt_tokens": 5}
    parsed = parse_completion(json.dumps(body).encode())

    assert isinstance(parsed, GenerationRequest)
    expected = tuple(Prompt(text=text, add_special_tokens=False, keep_last_tokens=5) for text in "ab")
    assert parsed.prompts == expected
    assert prompt(add_special_tokens=True).add_special_tokens is True
