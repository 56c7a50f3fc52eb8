from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio

from support.byte_checkpoint import write_byte_checkpoint
from support.server import Server, python_server, scripted

PAGE_TOKENS: Final = 16
PROMPT: Final = "a prefix of more than three pages, then some more" + "." * PAGE_TOKENS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with python_server(scripted(model, scripted_output="hash", page_size=PAGE_TOKENS)) as server:
        yield server


@pytest.fixture(autouse=True)
def flushed(server: Server) -> None:
    server.post("/flush_cache", {})


def complete(server: Server, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = server.post(
        "/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}
    ).json()
    return answer


def cached_tokens(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_a_second_request_finds_the_pages_of_the_first_and_says_the_same(server: Server) -> None:
    cold, warm = complete(server), complete(server)

    assert (0, len(PROMPT) // PAGE_TOKENS * PAGE_TOKENS) == (cached_tokens(cold), cached_tokens(warm))
    assert cold["choices"] == warm["choices"]


def test_another_salt_finds_nothing(server: Server) -> None:
    complete(server, cache_salt="one")

    assert 0 == cached_tokens(complete(server, cache_salt="other"))


def test_a_flush_lets_all_pages_go(server: Server) -> None:
    complete(server)
    before = server.state()["scheduler"]["pages_cached"]

    answer = server.post("/flush_cache", {}).json()

    assert before > 0
    assert (0, answer["pages_total"]) == (answer["pages_cached"], answer["pages_free"])
    assert 0 == cached_tokens(complete(server))


def test_without_the_cache_and_the_overlap_the_text_is_the_same(server: Server, model: Path) -> None:
    settings = scripted(model, scripted_output="hash", prefix_caching=False, overlap_schedule=False)
    expected = complete(server)["choices"]

    with python_server(settings) as plain:
        answers = [complete(plain) for _ in range(2)]

    assert [expected, expected] == [answer["choices"] for answer in answers]
    assert [0, 0] == [cached_tokens(answer) for answer in answers]


async def complete_at_once(server: Server, prompts: Sequence[str]) -> list[str]:
    texts = [""] * len(prompts)

    async def one(place: int, client: httpx.AsyncClient) -> None:
        body = {"prompt": prompts[place], "max_tokens": 60, "temperature": 0, "ignore_eos": True}
        answer = await client.post("/v1/completions", json=body)
        texts[place] = answer.json()["choices"][0]["text"]

    async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as client, trio.open_nursery() as nursery:
        for place in range(len(prompts)):
            nursery.start_soon(one, place, client)
    return texts


async def test_d1_same_and_different_prompts_at_once_say_what_each_says_alone(server: Server) -> None:
    """The scripted device's letters depend on every cell that it reads back through a request's own page table."""
    prompts = [PROMPT if place % 2 else f"{place} {PROMPT}" for place in range(16)]
    alone = {prompt: (await complete_at_once(server, [prompt]))[0] for prompt in dict.fromkeys(prompts)}
    server.post("/flush_cache", {})

    assert [alone[prompt] for prompt in prompts] == await complete_at_once(server, prompts)
