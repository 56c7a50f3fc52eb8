from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionTokenLogprob

from support.byte_checkpoint import write_byte_checkpoint
from support.server import SERVED_NAME, python_server, scripted

USER: Any = {"role": "user", "content": "héé 🙂"}
ASKED: Any = {"model": SERVED_NAME, "messages": [USER], "max_tokens": 24, "logprobs": True, "top_logprobs": 3, "n": 2}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    model = write_byte_checkpoint(tmp_path_factory.mktemp("model"))
    with (
        python_server(scripted(model)) as server,
        openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=30) as client,
    ):
        yield client


def test_tokens_of_a_chat_spell_its_text_and_a_stream_tells_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED)
    streamed: list[list[ChatCompletionTokenLogprob]] = [[], []]
    with client.chat.completions.create(**ASKED, stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                streamed[choice.index] += (choice.logprobs and choice.logprobs.content) or ()

    for choice in whole.choices:
        assert choice.logprobs is not None
        told = choice.logprobs.content or []
        spelled = b"".join(bytes(one.bytes or ()) for one in told).decode(errors="replace")
        assert choice.message.content == spelled.replace("<|turn|>", ""), "special tokens are told, and not shown"
        assert [3] * 24 == [len(one.top_logprobs) for one in told]
        assert streamed[choice.index] == told


def test_tokens_of_a_completion_lie_where_their_offsets_say(client: openai.OpenAI) -> None:
    completion = client.completions.create(model=SERVED_NAME, prompt="aé🙂b", max_tokens=16, logprobs=2)

    (choice,) = completion.choices
    assert "aé🙂baé🙂b" == choice.text
    assert choice.logprobs is not None
    offsets, tokens = choice.logprobs.text_offset or [], choice.logprobs.tokens or []
    assert [0, 1, 1, 2, 2, 2, 2, 3, 4, 5, 5, 6, 6, 6, 6, 7] == offsets
    assert "abab" == "".join(token for token in tokens if token.isascii())
    assert [-0.125, -0.25, -0.375, -0.5] == (choice.logprobs.token_logprobs or [])[:4]


def test_penalties_and_biases_are_taken_and_wrong_ones_named(client: openai.OpenAI) -> None:
    fine: Any = {"model": SERVED_NAME, "messages": [USER], "max_tokens": 3}
    extra = {"min_p": 0.1, "repetition_penalty": 1.1}
    client.chat.completions.create(**fine, presence_penalty=1, frequency_penalty=-1, logit_bias={"5": 100}, extra_body=extra)
    with pytest.raises(openai.BadRequestError, match="logit_bias holds 99999, which is out of the vocabulary"):
        client.chat.completions.create(**fine, logit_bias={"99999": 1})
    with pytest.raises(openai.BadRequestError, match="presence_penalty must be between -2 and 2"):
        client.chat.completions.create(**fine, presence_penalty=2.5)


def test_an_echo_of_token_ids_scores_them_without_any_output(client: openai.OpenAI) -> None:
    """What lm-eval asks of a server, and how it reads the answer."""
    fields: Any = {"model": SERVED_NAME, "prompt": [[97, 98, 99], [100, 101]], "echo": True, "max_tokens": 0, "logprobs": 1}

    completion = client.completions.create(**fields)

    assert ["abc", "de"] == [choice.text for choice in completion.choices]
    told = [choice.logprobs for choice in completion.choices]
    assert [[None, -0.25, -0.375], [None, -0.25]] == [one and one.token_logprobs for one in told]
    assert [[None, {"b": -0.25}, {"c": -0.375}], [None, {"e": -0.25}]] == [one and one.top_logprobs for one in told]
    assert completion.usage is not None
    assert (5, 0) == (completion.usage.prompt_tokens, completion.usage.completion_tokens)


def test_an_echo_begins_a_streamed_text(client: openai.OpenAI) -> None:
    fields: Any = {"model": SERVED_NAME, "prompt": "abc", "echo": True, "max_tokens": 4, "logprobs": 0}
    with client.completions.create(**fields, stream=True) as stream:
        choices = [chunk.choices[0] for chunk in stream]
    assert "abcabca" == "".join(choice.text for choice in choices)
    tokens = [token for choice in choices if choice.logprobs is not None for token in choice.logprobs.tokens or ()]
    assert list("abcabca") == tokens


def test_prompt_logprobs_of_a_chat(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model=SERVED_NAME, messages=[USER], max_tokens=1, extra_body={"prompt_logprobs": 1}
    )
    told: Any = completion.model_dump()["prompt_logprobs"]
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(told)
    assert told[0] is None
    assert {"logprob": -0.25, "rank": 1, "decoded_token": "u"} == told[1][str(ord("u"))]
