from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from support.byte_checkpoint import write_byte_checkpoint
from support.server import Server, python_server, scripted

BUSY, OTHER, ADMIN = "sk-busy-41", "sk-other-42", "sk-admin-43"
FLOOD = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("keys")
    (directory / "keys").write_text(f"busy:{BUSY}\nother:{OTHER}\n")
    settings: dict[str, Any] = {
        "api_key_file": directory / "keys",
        "admin_key": ADMIN,
        "max_running_requests": 1,
        "scripted_step_ms": 10,
    }
    model = write_byte_checkpoint(directory / "model", context_tokens=256)
    with python_server(scripted(model, **settings)) as server:
        yield server


async def complete(client: httpx.AsyncClient, key: str, tokens: int) -> None:
    body = {"prompt": f"{key} asks", "max_tokens": tokens, "ignore_eos": True}
    answer = await client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    assert 200 == answer.status_code


async def waiting(client: httpx.AsyncClient) -> int:
    state = (await client.get("/debug/state", headers={"Authorization": f"Bearer {ADMIN}"})).json()
    count: int = state["scheduler"]["waiting"]
    return count


async def test_a_key_with_one_request_does_not_wait_for_all_of_another_key(server: Server) -> None:
    ended: list[str] = []

    async def one(client: httpx.AsyncClient, key: str, tokens: int) -> None:
        await complete(client, key, tokens)
        ended.append(key)

    async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as client, trio.open_nursery() as nursery:
        for _ in range(FLOOD):
            nursery.start_soon(partial(one, client, BUSY, 40))
        while await waiting(client) < FLOOD - 2:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(partial(one, client, OTHER, 4))

    assert FLOOD + 1 == len(ended)
    assert ended.index(OTHER) <= FLOOD // 2
