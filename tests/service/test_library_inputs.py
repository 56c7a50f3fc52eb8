from typing import Any

import pytest

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.errors import ParameterError
from layered_llm.domain.messages.prompts import ChatMessage, Prompt, ToolCall
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.library import inputs


class Whole:
    """A whole number of another library."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


class Text(str):
    __slots__ = ()


class Params(SamplingParams):
    pass


def test_a_string_is_a_text() -> None:
    assert Prompt.of_text("") == inputs.to_prompt("")
    assert Prompt.of_text("héllo 🦙") == inputs.to_prompt("héllo 🦙")


def test_messages_are_a_conversation_as_mappings_or_as_values() -> None:
    expected = Prompt.of_chat(
        [ChatMessage(role="system", content="Be short."), ChatMessage(role="user", content="Hi", name="Ada")]
    )
    as_mappings = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi", "name": "Ada"}]
    assert expected == inputs.to_prompt(as_mappings)
    assert expected.chat is not None
    assert expected == inputs.to_prompt(expected.chat)


def test_an_assistant_may_have_said_nothing() -> None:
    assert Prompt.of_chat([ChatMessage(role="assistant", content=None)]) == inputs.to_prompt([{"role": "assistant"}])


def with_calls(calls: Any) -> ChatMessage:
    return ChatMessage(role="assistant", content=None, tool_calls=calls)


def calling(call: Any) -> ChatMessage:
    return with_calls((call,))


def test_a_turn_may_be_one_of_calls() -> None:
    turns = [calling(ToolCall(name="f", arguments="{}", id="c")), ChatMessage(role="tool", content="1", tool_call_id="c")]
    assert Prompt.of_chat(turns) == inputs.to_prompt(turns)


def test_whole_numbers_of_any_library_are_token_ids() -> None:
    prompt = inputs.to_prompt([0, Whole(7), (1 << 31) - 1])  # type: ignore[arg-type] # as numpy's
    assert prompt.token_ids is not None
    assert [0, 7, (1 << 31) - 1] == list(unpack_i32(prompt.token_ids))


@pytest.mark.parametrize(
    ("prompt", "param", "words"),
    [
        ([], "prompt", "must not be empty"),
        ((), "prompt", "must not be empty"),
        (None, "prompt", "must be a text"),
        (b"bytes", "prompt", "must be a text"),
        ({"role": "user"}, "prompt", "must be a text"),
        ("a\ud800", "prompt", "lone surrogate at character 1"),
        ([-1], "prompt[0]", "between 0 and 2147483647, got -1"),
        ([1, 1 << 31], "prompt[1]", "between 0 and 2147483647"),
        ([1, True], "prompt[1]", "must be a token id, got True"),
        ([True], "prompt[0]", "must be a token id, got True"),
        ([1.0], "prompt[0]", "must be a token id"),
        (["a", "b"], "prompt[0]", "must be a token id"),
        ([1, {"role": "user", "content": "x"}], "prompt[1]", "must be a token id"),
        ([{"role": "user", "content": "x"}, 1], "prompt[1]", "must be a message"),
        ([{"content": "x"}], "prompt[0].role", "must be a string, got None"),
        ([{"role": "", "content": "x"}], "prompt[0].role", "must not be empty"),
        ([{"role": "user"}], "prompt[0].content", "must be a string, got None"),
        ([{"role": "user", "content": ["x"]}], "prompt[0].content", "must be a string"),
        ([{"role": "user", "content": "\udfff"}], "prompt[0].content", "lone surrogate"),
        ([{"role": "user", "content": "x", "name": 3}], "prompt[0].name", "must be a string, got 3"),
        ([{"role": "user", "content": "x", "tool_calls": []}], "prompt[0].tool_calls", "a message has role, content, name"),
        ([ChatMessage(role="user", content="\ud800")], "prompt[0].content", "lone surrogate"),
        ([ChatMessage(role="tool", content="x", tool_call_id="\ud800")], "prompt[0].tool_call_id", "lone surrogate"),
        ([calling(ToolCall(name="\ud800", arguments="{}"))], "prompt[0].tool_calls[0].name", "lone surrogate"),
        ([with_calls(None)], "prompt[0].tool_calls", "must be a list of ToolCalls, got None"),
        ([calling({"name": "f"})], "prompt[0].tool_calls[0]", "must be a ToolCall"),
        ("x" * (inputs.MAX_PROMPT_BYTES + 1), "prompt", "at most 33554432 are taken"),
    ],
)
def test_what_cannot_be_submitted_is_refused_by_place(prompt: Any, param: str, words: str) -> None:
    with pytest.raises(ParameterError, match=r".+") as caught:
        inputs.to_prompt(prompt)
    assert param == caught.value.param
    assert words in caught.value.message


@pytest.mark.parametrize(("shape", "param"), [("bare", "prompt"), ("token", "prompt[1]")])
def test_a_number_of_any_length_is_refused_briefly(shape: str, param: str) -> None:
    prompt: Any = 10**5000 if shape == "bare" else [1, 10**5000]
    with pytest.raises(ParameterError, match="got an integer of 16610 bits") as caught:
        inputs.to_prompt(prompt)
    assert param == caught.value.param


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (SamplingParams(stop=("\ud800",)), "stop"),
        ({"max_tokens": 3}, "params"),
    ],
)
def test_parameters_that_could_not_be_encoded_are_refused(params: Any, param: str) -> None:
    with pytest.raises(ParameterError, match=r".+") as caught:
        inputs.to_params(params)
    assert param == caught.value.param


def test_parameters_leave_in_plain_types() -> None:
    given = SamplingParams(stop=[Text("END")], stop_token_ids=[3], temperature=0)  # type: ignore[arg-type] # lists are usual
    params = inputs.to_params(given)
    assert SamplingParams(stop=("END",), stop_token_ids=(3,), temperature=0.0) == params
    assert [str] == [type(text) for text in params.stop]
    assert SamplingParams is type(inputs.to_params(Params(max_tokens=3))), "a message has no other"
    assert float is type(params.temperature)


def test_parameters_are_for_all_prompts_or_one_for_each() -> None:
    one, two = SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    assert (one, one) == inputs.to_all_params(one, 2)
    assert (one, two) == inputs.to_all_params([one, two], 2)
    with pytest.raises(ParameterError, match="params has 1 items for 2 prompts"):
        inputs.to_all_params([one], 2)


def test_a_list_is_one_prompt_or_several() -> None:
    message = {"role": "user", "content": "x"}
    assert ["x"] == inputs.as_prompts("x")
    assert [[message]] == inputs.as_prompts([message])
    assert [[1, 2]] == inputs.as_prompts([1, 2])
    several: list[inputs.PromptLike] = ["x", [message], [1]]
    assert several == inputs.as_prompts(several)
    assert [] == inputs.as_prompts([])


def test_only_conversations_are_conversations() -> None:
    message = {"role": "user", "content": "x"}
    assert [[message], [message]] == inputs.as_conversations([[message], [message]])
    with pytest.raises(ParameterError, match=r"messages\[0\] must be a conversation"):
        inputs.as_conversations(["x"])  # type: ignore[arg-type] # a text is for generate
