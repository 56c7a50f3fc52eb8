import pytest

from layered_llm.client.chunks import ChoiceDelta, StreamChunk, ToolCallDelta, Usage, read_chunk
from layered_llm.client.errors import MalformedStream
from support.client_fakes import chat_chunk, usage_chunk


def delta(*, index: int = 0, text: str = "", reasoning: str = "", finish_reason: str | None = None) -> ChoiceDelta:
    return ChoiceDelta(index=index, text=text, reasoning=reasoning, tool_calls=(), finish_reason=finish_reason)


def test_chat_chunk() -> None:
    raw = chat_chunk("Hi", index=1, finish="stop")

    expected = StreamChunk(
        id="chatcmpl-1", model="m", choices=(delta(index=1, text="Hi", finish_reason="stop"),), usage=None, raw=raw
    )
    assert expected == read_chunk(raw)


def test_text_chunk() -> None:
    assert (delta(text="Hi"),) == read_chunk({"choices": [{"index": 0, "text": "Hi", "finish_reason": None}]}).choices


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_by_both_names(name: str) -> None:
    assert (delta(reasoning="so"),) == read_chunk({"choices": [{"delta": {name: "so"}}]}).choices


def test_tool_call_pieces() -> None:
    calls = [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{"}},
    ]

    expected = (
        ToolCallDelta(index=0, id="call_1", name="f", arguments=""),
        ToolCallDelta(index=1, id="", name="", arguments="{"),
    )
    assert expected == read_chunk(chat_chunk(tool_calls=calls)).choices[0].tool_calls


def test_usage_chunk_has_no_choices() -> None:
    chunk = read_chunk(usage_chunk(9, 12))

    assert (Usage(prompt_tokens=9, completion_tokens=12, cached_tokens=None), ()) == (chunk.usage, chunk.choices)


def test_cached_tokens() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}}

    assert Usage(prompt_tokens=9, completion_tokens=1, cached_tokens=8) == read_chunk({"usage": usage}).usage


def test_text_is_that_of_the_first_choice() -> None:
    raw = {"choices": [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}]}

    assert "a" == read_chunk(raw).text


def test_role_alone_is_no_output() -> None:
    chunk = read_chunk(chat_chunk("", role="assistant"))

    assert (False, False) == (chunk.has_output, chunk.has_finish)


def test_nulls_are_empty() -> None:
    raw = {"id": None, "choices": [{"index": 0, "delta": None, "finish_reason": None}], "usage": None}

    assert StreamChunk(id="", model="", choices=(delta(),), usage=None, raw=raw) == read_chunk(raw)


@pytest.mark.parametrize(
    "raw",
    [
        [],
        "x",
        {"choices": {}},
        {"choices": ["x"]},
        {"choices": [{"index": True}]},
        {"choices": [{"delta": {"content": 1}}]},
        {"choices": [{"delta": {"tool_calls": [1]}}]},
        {"usage": 3},
        {"usage": {"prompt_tokens": "3"}},
    ],
)
def test_wrong_types_are_malformed(raw: object) -> None:
    with pytest.raises(MalformedStream, match="expected"):
        read_chunk(raw)
