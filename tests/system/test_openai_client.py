import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from support.byte_checkpoint import write_byte_checkpoint
from support.server import SERVED_NAME, Server, python_server, scripted

CONTEXT_TOKENS = 512
TURN_TOKENS = 2
"""What the template puts around a conversation of one turn beside its words: one special token for each turn."""
USER: Any = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=CONTEXT_TOKENS)


@pytest.fixture(scope="module")
def echo_server(model: Path) -> Iterator[Server]:
    with python_server(scripted(model)) as server:
        yield server


@pytest.fixture(scope="module")
def hash_server(model: Path) -> Iterator[Server]:
    with python_server(scripted(model, scripted_output="hash")) as server:
        yield server


def client_of(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def echo(echo_server: Server) -> Iterator[openai.OpenAI]:
    yield from client_of(echo_server)


@pytest.fixture
def hashed(hash_server: Server) -> Iterator[openai.OpenAI]:
    yield from client_of(hash_server)


def said(completion: ChatCompletion) -> list[str | None]:
    return [choice.message.content for choice in completion.choices]


def test_the_served_model_is_listed_and_can_be_asked_for(echo: openai.OpenAI) -> None:
    assert [SERVED_NAME] == [model.id for model in echo.models.list()]
    assert SERVED_NAME == echo.models.retrieve(SERVED_NAME).id


def test_a_whole_chat_completion(echo: openai.OpenAI) -> None:
    completion = echo.chat.completions.create(model=SERVED_NAME, messages=[USER], max_tokens=11)

    assert ["user\nhello"] == said(completion)
    assert "length" == completion.choices[0].finish_reason
    assert completion.usage is not None
    rendered = len("user\nhello") + len("assistant\n") + TURN_TOKENS
    assert (rendered, 11) == (completion.usage.prompt_tokens, completion.usage.completion_tokens)


def test_a_streamed_chat_completion(echo: openai.OpenAI) -> None:
    with echo.chat.completions.create(model=SERVED_NAME, messages=[USER], max_tokens=11, stream=True) as stream:
        chunks = list(stream)

    assert "user\nhello" == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "assistant" == chunks[0].choices[0].delta.role
    assert ["length"] == [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason]
    assert "length" == chunks[-1].choices[0].finish_reason
    assert 1 == len({chunk.id for chunk in chunks})
    assert {None} == {chunk.usage for chunk in chunks}


def test_the_stream_helper_of_the_client(echo: openai.OpenAI) -> None:
    with echo.chat.completions.stream(model=SERVED_NAME, messages=[USER], stop=["lo"]) as stream:
        kinds = {event.type for event in stream}
        completion = stream.get_final_completion()

    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert ("user\nhel", "stop") == (completion.choices[0].message.content, completion.choices[0].finish_reason)


def test_usage_comes_in_a_last_chunk_without_choices(echo: openai.OpenAI) -> None:
    with echo.chat.completions.create(
        model=SERVED_NAME, messages=[USER], max_tokens=7, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *earlier, last = list(stream)

    assert {None} == {chunk.usage for chunk in earlier}
    assert [] == last.choices
    assert last.usage is not None
    assert 7 == last.usage.completion_tokens


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("abc", ["abca"]),
        (["abc", "xy"], ["abca", "xyxy"]),
        ([97, 98], ["abab"]),
        ([[97, 98], [99]], ["abab", "cccc"]),
    ],
    ids=["text", "texts", "tokens", "lists-of-tokens"],
)
def test_the_four_shapes_of_a_prompt(prompt: Any, texts: list[str], echo: openai.OpenAI) -> None:
    whole = echo.completions.create(model=SERVED_NAME, prompt=prompt, max_tokens=4)
    with echo.completions.create(model=SERVED_NAME, prompt=prompt, max_tokens=4, stream=True) as stream:
        streamed = [""] * len(texts)
        for chunk in stream:
            streamed[chunk.choices[0].index] += chunk.choices[0].text

    assert texts == [choice.text for choice in whole.choices]
    assert list(range(len(texts))) == [choice.index for choice in whole.choices]
    assert texts == streamed


def test_n_choices_differ_and_come_in_order(hashed: openai.OpenAI) -> None:
    whole = hashed.chat.completions.create(model=SERVED_NAME, messages=[USER], max_tokens=12, n=2, seed=5)
    streamed = ["", ""]
    with hashed.chat.completions.create(model=SERVED_NAME, messages=[USER], max_tokens=12, n=2, seed=5, stream=True) as stream:
        for chunk in stream:
            streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""

    assert [0, 1] == [choice.index for choice in whole.choices]
    assert 2 == len(set(said(whole)))
    assert streamed == said(whole)
    assert whole.usage is not None
    assert 24 == whole.usage.completion_tokens


@pytest.mark.parametrize("stop", ["c d", ["zzz", "c d"]])
def test_a_stop_string_ends_the_output_in_front_of_it(stop: Any, echo: openai.OpenAI) -> None:
    whole = echo.completions.create(model=SERVED_NAME, prompt="ab c de", max_tokens=50, stop=stop)
    with echo.completions.create(model=SERVED_NAME, prompt="ab c de", max_tokens=50, stop=stop, stream=True) as stream:
        streamed = "".join(chunk.choices[0].text for chunk in stream)

    assert ("ab ", "stop") == (whole.choices[0].text, whole.choices[0].finish_reason)
    assert "ab " == streamed


def test_c18_without_a_seed_not_even_twins_in_one_body_are_alike(hashed: openai.OpenAI) -> None:
    def ask(seed: int | None) -> list[str]:
        completion = hashed.completions.create(model=SERVED_NAME, prompt=["abc"] * 2, max_tokens=20, temperature=1.0, seed=seed)
        return [choice.text for choice in completion.choices]

    assert 1 == len({*ask(7), *ask(7)})
    assert 4 == len({*ask(None), *ask(None)})


def test_a_seed_repeats_an_answer_and_none_does_not(hashed: openai.OpenAI) -> None:
    def ask(seed: int | None) -> str:
        completion = hashed.completions.create(model=SERVED_NAME, prompt="abc", max_tokens=20, temperature=1.0, seed=seed)
        return completion.choices[0].text

    assert ask(7) == ask(7)
    assert ask(7) != ask(8)
    assert ask(None) != ask(None)


def test_a_chat_without_a_limit_fills_the_context_and_completions_stop_at_16(echo: openai.OpenAI) -> None:
    chat = echo.chat.completions.create(model=SERVED_NAME, messages=[USER])
    completion = echo.completions.create(model=SERVED_NAME, prompt="abc")

    assert chat.usage is not None
    assert CONTEXT_TOKENS == chat.usage.total_tokens
    assert completion.usage is not None
    assert 16 == completion.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_a_bad_request_with_both_numbers(stream: bool, echo: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        echo.completions.create(model=SERVED_NAME, prompt="x" * 600, max_tokens=5, stream=stream)

    assert "context_length_exceeded" == caught.value.code
    assert "prompt" == caught.value.param
    assert "600" in caught.value.message
    assert str(CONTEXT_TOKENS) in caught.value.message


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "completion_tokens"),
    [(CONTEXT_TOKENS - 1, 5, 1), (CONTEXT_TOKENS - 5, 5, 5), (CONTEXT_TOKENS - 4, 5, 4), (10, 10_000, CONTEXT_TOKENS - 10)],
)
def test_max_tokens_is_an_upper_bound(prompt_tokens: int, max_tokens: int, completion_tokens: int, echo: openai.OpenAI) -> None:
    completion = echo.completions.create(model=SERVED_NAME, prompt="x" * prompt_tokens, max_tokens=max_tokens)

    assert completion.usage is not None
    assert completion_tokens == completion.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_not_found_and_the_served_names_are_told(stream: bool, echo: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        echo.chat.completions.create(model="gpt-9", messages=[USER], stream=stream)

    assert "model_not_found" == caught.value.code
    assert "gpt-9" in caught.value.message
    assert SERVED_NAME in caught.value.message


def test_an_unsupported_field_is_refused_and_not_ignored(echo: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        echo.chat.completions.create(model=SERVED_NAME, messages=[USER], modalities=["audio"])

    assert "modalities" == caught.value.param


def test_closing_a_stream_of_the_client_ends_its_request(echo: openai.OpenAI, echo_server: Server) -> None:
    before = echo_server.total("aborts_emitted_total")
    with echo.completions.create(model=SERVED_NAME, prompt="x" * 8, max_tokens=500, stream=True) as stream:
        next(iter(stream))
    echo_server.wait_quiescent()

    assert echo_server.total("aborts_emitted_total") - before in (0, 1)


def events(response: httpx.Response) -> list[Any]:
    parts = [part.removeprefix("data: ") for part in response.text.split("\n\n") if part.startswith("data: ")]
    assert "[DONE]" == parts.pop()
    return [json.loads(part) for part in parts]


@pytest.mark.parametrize("n", [1, 3])
def test_the_raw_json_is_what_the_types_of_the_client_demand(n: int, hash_server: Server) -> None:
    extra = {"max_tokens": 4, "n": n}
    streamed = {**extra, "stream": True, "stream_options": {"include_usage": True}}
    for model in hash_server.get("/v1/models").json()["data"]:
        Model.model_validate(model, strict=True)
    ChatCompletion.model_validate(hash_server.post("/v1/chat/completions", {"messages": [USER], **extra}).json())
    Completion.model_validate(hash_server.post("/v1/completions", {"prompt": "ab", **extra}).json())
    chunks = events(hash_server.post("/v1/chat/completions", {"messages": [USER], **streamed}))
    pieces = events(hash_server.post("/v1/completions", {"prompt": "ab", **streamed}))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    for piece in pieces:
        # The type has no null for finish_reason, which OpenAI's own streams have until the last piece.
        choices = [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in piece["choices"]]
        Completion.model_validate({**piece, "choices": choices})

    for stream in (chunks, pieces):
        choices = [choice for chunk in stream for choice in chunk["choices"]]
        assert all("finish_reason" in choice for choice in choices)
        ended = [choice["index"] for choice in choices if choice["finish_reason"] is not None]
        assert list(range(n)) == sorted(ended)


def test_a_conversation_has_the_same_tokens_as_the_text_that_its_template_makes(
    echo: openai.OpenAI, echo_server: Server
) -> None:
    text = "<|turn|>user\nhello<|turn|>assistant\n"
    chat = echo_server.post("/tokenize", {"messages": [USER], "return_token_strs": True}).json()
    plain = echo_server.post("/v1/tokenize", {"prompt": text}).json()
    answered = echo.chat.completions.create(model=SERVED_NAME, messages=[USER], max_tokens=1)
    completed = echo.completions.create(model=SERVED_NAME, prompt=text, max_tokens=1)

    assert chat["tokens"] == plain["tokens"]
    assert ["<|turn|>", "u"] == chat["token_strs"][:2]
    assert {"prompt": text} == echo_server.post("/detokenize", {"tokens": plain["tokens"]}).json()
    assert answered.usage is not None
    assert completed.usage is not None
    assert chat["count"] == answered.usage.prompt_tokens == completed.usage.prompt_tokens
    assert CONTEXT_TOKENS == chat["max_model_len"]


def test_more_than_the_context_can_be_counted(echo_server: Server) -> None:
    assert 10_000 == echo_server.post("/tokenize", {"prompt": "x" * 10_000}).json()["count"]


def test_the_tokenizer_describes_itself(echo_server: Server) -> None:
    info = echo_server.get("/tokenizer_info").json()

    assert ("<|bos|>", "<|eos|>") == (info["bos_token"], info["eos_token"])
    assert info["chat_template"].startswith("{% for message in messages %}")


def test_nothing_is_left_of_questions(echo_server: Server) -> None:
    assert 400 == echo_server.post("/detokenize", {"tokens": [1 << 30]}).status_code
    echo_server.wait_quiescent()


def test_the_server_tells_what_it_is(echo_server: Server) -> None:
    info = echo_server.get("/server_info").json()

    assert echo_server.get("/version").json() == {"version": info["version"]}
    assert ("ready", "scripted", CONTEXT_TOKENS) == (info["status"], info["settings"]["device"], info["max_model_len"])
    assert 0 < info["internal_states"][0]["pages_total"]
    assert info["model_path"] == echo_server.get("/get_model_info").json()["tokenizer_path"]


def test_sglangs_endpoint_says_what_completions_say(echo: openai.OpenAI, echo_server: Server) -> None:
    sampling = {"max_new_tokens": 5, "temperature": 0}
    completed = echo.completions.create(model=SERVED_NAME, prompt="abc", max_tokens=5, temperature=0)
    whole = echo_server.post("/generate", {"text": "abc", "sampling_params": sampling}).json()
    *pieces, last = events(echo_server.post("/generate", {"text": "abc", "sampling_params": sampling, "stream": True}))

    assert completed.choices[0].text == whole["text"] == last["text"]
    assert {"type": "length", "length": 5} == whole["meta_info"]["finish_reason"] == last["meta_info"]["finish_reason"]
    assert all(whole["text"].startswith(piece["text"]) for piece in pieces)
    assert {"prompt": whole["text"]} == echo_server.post("/detokenize", {"tokens": whole["output_ids"]}).json()


def test_mini_sglangs_body_is_streamed_as_json_events(echo_server: Server) -> None:
    *_, last = events(echo_server.post("/generate", {"prompt": "a\nb", "max_tokens": 3, "ignore_eos": True}))

    assert ("a\nb", 3) == (last["text"], last["meta_info"]["completion_tokens"])
