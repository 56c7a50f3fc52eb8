from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import eventually
from support.server import Server, hypercorn_server, scripted

ALICE, BOB, EVE, ADMIN = "sk-alice-5f2c", "sk-bob-9d1e", "sk-eve-0a7b", "sk-admin-77f0"
TRIES = 6
"""Each on a connection of its own, so that both API processes take some."""
ENGINE_ROLES = {"supervisor", "text", "scheduler", "runtime"}
BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 400, "stream": True}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("keys")
    (directory / "keys").write_text(f"alice:{ALICE}\n")
    settings = {
        "api_key_file": directory / "keys",
        "api_key": BOB,
        "admin_key": ADMIN,
        "max_streams_per_key": 2,
        "max_streams": 3,
        "scripted_step_ms": 20,
        "log_level": "debug",
    }
    model = write_byte_checkpoint(directory / "model", context_tokens=512)
    with hypercorn_server(scripted(model, **settings), "-w", "2") as server:
        eventually(lambda: len(debug_state(server)["api"]) == 2)
        yield server


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def debug_state(server: Server) -> Any:
    with server.client() as client:
        return client.get("/debug/state", headers=bearing(ADMIN)).json()


def opened(server: Server, stack: ExitStack, key: str) -> httpx.Response:
    client = stack.enter_context(server.client())
    return stack.enter_context(client.stream("POST", "/v1/completions", json=BODY, headers=bearing(key)))


def statuses(server: Server, key: str) -> list[int]:
    with ExitStack() as stack:
        return [opened(server, stack, key).status_code for _ in range(TRIES)]


def test_every_api_process_demands_a_key(guarded: Server) -> None:
    assert [401] * TRIES == statuses(guarded, EVE)


def test_streams_are_bounded_by_key_and_in_all_whichever_process_has_them(guarded: Server) -> None:
    with ExitStack() as stack:
        first = [opened(guarded, stack, ALICE) for _ in range(2)]
        of_one_key = [opened(guarded, stack, ALICE) for _ in range(TRIES)]
        other_key = opened(guarded, stack, BOB)
        of_all = [opened(guarded, stack, BOB) for _ in range(TRIES)]
        for refused in (*of_one_key, *of_all):
            refused.read()

    assert [200, 200, 200] == [response.status_code for response in (*first, other_key)]
    assert {(429, "too_many_streams")} == {(each.status_code, each.json()["error"]["code"]) for each in of_one_key}
    assert {(429, "server_full")} == {(each.status_code, each.json()["error"]["code"]) for each in of_all}
    assert {("1", "true", "application/json")} == {
        (each.headers["retry-after"], each.headers["x-should-retry"], each.headers["content-type"])
        for each in (*of_one_key, *of_all)
    }
    eventually(lambda: debug_state(guarded)["quiescent"])
    with ExitStack() as stack:
        assert 200 == opened(guarded, stack, ALICE).status_code


def test_keys_are_in_no_file_log_command_line_or_environment_of_the_engine(guarded: Server) -> None:
    found = guarded.processes()
    written = [path.read_bytes() for path in guarded.home.rglob("*") if path.is_file()]
    commands = [Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in found]
    engine = [Path(f"/proc/{process.pid}/environ").read_bytes() for process in found if process.role in ENGINE_ROLES]

    assert len(ENGINE_ROLES) == len(engine)
    for key in (ALICE, BOB, EVE, ADMIN):
        assert not [text for text in (*written, *commands, *engine) if key.encode() in text]
        assert key not in str(debug_state(guarded))
