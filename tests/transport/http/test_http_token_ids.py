import json
from typing import Any

import pytest

from layered_llm.domain.finish import FinishReason
from support.http_client import CHAT, COMPLETIONS, MESSAGES, application, post
from support.http_engine import FakeEngine, answering, ended, text_delta

ANSWER = answering(
    text_delta("", token_ids=(7,)),
    text_delta("Hi", token_ids=(8, 9)),
    text_delta("", token_ids=(2,), finish_reason=FinishReason.STOP),
    ended(),
)
CHAT_BODY = {"messages": MESSAGES, "return_token_ids": True}
COMPLETION_BODY = {"prompt": ["a", "b"], "return_token_ids": True}


async def told(path: str, body: dict[str, Any]) -> Any:
    return (await post(application(FakeEngine(ANSWER)), path, body)).json()


async def chunks(path: str, body: dict[str, Any]) -> list[Any]:
    exchange = await post(application(FakeEngine(ANSWER)), path, {**body, "stream": True})
    return [json.loads(item.removeprefix("data: ")) for item in exchange.body.decode().split("\n\n")[:-2]]


async def test_a_chat_tells_its_prompts_ids_and_each_choices() -> None:
    body = await told(CHAT, CHAT_BODY)

    assert [0, 1, 2] == body["prompt_token_ids"]
    assert [[7, 8, 9, 2]] == [choice["token_ids"] for choice in body["choices"]]


async def test_a_completion_tells_them_with_each_choice() -> None:
    body = await told(COMPLETIONS, COMPLETION_BODY)

    assert [([0, 1, 2], [7, 8, 9, 2])] * 2 == [(one["prompt_token_ids"], one["token_ids"]) for one in body["choices"]]


async def test_a_streamed_token_without_text_is_told_by_its_id() -> None:
    said = await chunks(CHAT, CHAT_BODY)

    assert [[0, 1, 2], None, None, None] == [chunk.get("prompt_token_ids") for chunk in said][:4]
    assert [7, 8, 9, 2] == [token for chunk in said for token in chunk["choices"][0].get("token_ids", [])]


async def test_every_chunk_of_a_stream_has_the_ids_of_its_own_tokens() -> None:
    """A loop over them needs no case for the chunk of the role and for the last one."""
    for path, body in ((CHAT, CHAT_BODY), (COMPLETIONS, COMPLETION_BODY)):
        token_ids = [choice["token_ids"] for chunk in await chunks(path, body) for choice in chunk["choices"]]

        assert token_ids[0 if path == CHAT else -1] == []
        assert {7, 8, 9, 2} == {token for ids in token_ids for token in ids}


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "a"})])
async def test_nothing_is_told_of_ids_that_nobody_asked_for(path: str, body: dict[str, Any]) -> None:
    assert "token_ids" not in json.dumps([await told(path, body), await chunks(path, body)])


async def test_every_chunk_has_the_fingerprint_of_the_server() -> None:
    assert {"fp_0"} == {chunk["system_fingerprint"] for chunk in await chunks(CHAT, CHAT_BODY)}
