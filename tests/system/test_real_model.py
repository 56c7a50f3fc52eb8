from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from layered_llm.client import AsyncChatClient
from support.golden import Golden, default_checkpoint, golden, goldens, tokenizer
from support.hugging_face import write_hugging_face
from support.server import Server, python_server

MODEL = "SmolLM2-135M-Instruct"
START_S = 120.0
GREEDY = {"temperature": 0, "max_tokens": 64, "return_token_ids": True}
LIVE_PROMPTS = ("My favourite season is", "def fibonacci(n):\n")
LIVE_TOKENS = 16


@attrs.frozen(kw_only=True)
class Answer:
    text: str
    token_ids: Sequence[int]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


def expected_answer(reference: Golden) -> Answer:
    has_ended = not reference.ignore_eos and len(reference.output_ids) < GREEDY["max_tokens"]
    return Answer(
        text=tokenizer().decode(list(reference.output_ids), skip_special_tokens=True),
        token_ids=reference.output_ids,
        finish_reason="stop" if has_ended else "length",
        prompt_tokens=len(reference.prompt_ids),
        completion_tokens=len(reference.output_ids),
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with python_server({}, is_ready=False) as server:
        server.wait_ready(START_S)
        yield server


async def ask_whole(server: Server, reference: Golden) -> Answer:
    path = "/v1/chat/completions" if reference.is_chat else "/v1/completions"
    async with httpx.AsyncClient(base_url=server.base_url, timeout=START_S) as client:
        response = await client.post(path, json={**reference.prompt, **GREEDY, "ignore_eos": reference.ignore_eos})
    return read_whole(response.json())


def read_whole(body: Mapping[str, Any]) -> Answer:
    (choice,) = body["choices"]
    return Answer(
        text=choice["message"]["content"] if "message" in choice else choice["text"],
        token_ids=choice.get("token_ids", []),
        finish_reason=choice["finish_reason"],
        prompt_tokens=body["usage"]["prompt_tokens"],
        completion_tokens=body["usage"]["completion_tokens"],
    )


async def ask_streaming(server: Server, reference: Golden) -> Answer:
    parameters = {**reference.prompt, **GREEDY, "ignore_eos": reference.ignore_eos}
    async with AsyncChatClient(server.base_url) as client:
        open_stream = client.chat_stream if reference.is_chat else client.completion_stream
        async with open_stream(model=MODEL, **parameters) as stream:
            chunks = [chunk async for chunk in stream]
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage is not None]
    (finish_reason,) = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    return Answer(
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token for chunk in chunks for choice in chunk.raw["choices"] for token in choice.get("token_ids") or ()],
        finish_reason=finish_reason,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )


ASK = {"whole": ask_whole, "streaming": ask_streaming}


async def ask_all(server: Server, references: Sequence[Golden], ask: str) -> dict[str, Answer]:
    """Asks all at the same time."""
    answers: dict[str, Answer] = {}

    async def one(reference: Golden) -> None:
        answers[reference.name] = await ASK[ask](server, reference)

    async with trio.open_nursery() as nursery:
        for reference in references:
            nursery.start_soon(one, reference)
    return answers


@pytest.mark.parametrize(("ask", "references"), [("whole", goldens()[1:12:2]), ("streaming", goldens()[:12:2])], ids=ASK)
async def test_one_request_alone_gets_the_tokens_of_transformers(
    ask: str, references: Sequence[Golden], server: Server
) -> None:
    for reference in references:
        assert expected_answer(reference) == await ASK[ask](server, reference)


@pytest.mark.parametrize(("ask", "references"), [("whole", goldens()[::2]), ("streaming", goldens()[1::2])], ids=ASK)
async def test_eight_requests_at_a_time_get_the_tokens_of_transformers(
    ask: str, references: Sequence[Golden], server: Server
) -> None:
    expected = {reference.name: expected_answer(reference) for reference in references}
    assert expected == await ask_all(server, references, ask)


async def test_texts_and_token_ids_are_the_same_prompt(server: Server) -> None:
    reference = golden("chat-conversation")
    as_ids = attrs.evolve(reference, prompt={"prompt": list(reference.prompt_ids)})
    assert expected_answer(reference) == await ask_whole(server, as_ids)


async def test_clients_that_leave_free_their_pages_and_disturb_nobody(server: Server) -> None:
    async def leave_early(client: AsyncChatClient, prompt: str) -> None:
        async with client.completion_stream(model=MODEL, prompt=prompt, max_tokens=2000, ignore_eos=True) as stream:
            await anext(stream)

    async with AsyncChatClient(server.base_url) as client, trio.open_nursery() as nursery:
        for prompt in ("One", "Two two", "Three three three"):
            nursery.start_soon(leave_early, client, prompt)
    state = await trio.to_thread.run_sync(server.wait_quiescent)
    assert (0, 0) == (state["scheduler"]["pages_used"], state["scheduler"]["running"])
    assert expected_answer(golden("code")) == await ask_streaming(server, golden("code"))


async def test_prompts_outside_the_reference_get_the_tokens_of_transformers_too(server: Server, tmp_path: Path) -> None:
    import transformers

    directory = write_hugging_face(default_checkpoint(), tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="float32")
    encoder = transformers.AutoTokenizer.from_pretrained(directory)
    for prompt in LIVE_PROMPTS:
        encoded = encoder(prompt, return_tensors="pt")
        (ids,) = model.generate(**encoded, max_new_tokens=LIVE_TOKENS, do_sample=False, eos_token_id=None)
        expected = encoder.decode(ids[encoded["input_ids"].shape[1] :], skip_special_tokens=True)
        body = {"prompt": prompt, "temperature": 0, "max_tokens": LIVE_TOKENS, "ignore_eos": True}
        answer = await trio.to_thread.run_sync(server.post, "/v1/completions", body)
        assert expected == read_whole(answer.json()).text
