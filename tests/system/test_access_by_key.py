"""One guarded server with two API processes: what each key finds of the cache and of requests, and what is logged."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import eventually
from support.server import Server, hypercorn_server, scripted

ALICE, BOB, ADMIN = "sk-alice-1", "sk-bob-1", "sk-admin-1"
PAGE_TOKENS = 16
TRIES = 4
"""Each on a connection of its own, so that both API processes take some."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("keys")
    (directory / "keys").write_text(f"alice:{ALICE}\nbob:{BOB}\n")
    settings: dict[str, Any] = {
        "api_key_file": directory / "keys",
        "admin_key": ADMIN,
        "page_size": PAGE_TOKENS,
        "access_log": True,
        "access_log_format": "json",
    }
    with hypercorn_server(scripted(write_byte_checkpoint(directory / "model"), **settings), "-w", "2") as server:
        yield server


def asked(server: Server, key: str, method: str, path: str, body: object = None) -> httpx.Response:
    with server.client() as client:
        return client.request(method, path, json=body, headers={"X-Api-Key": key})


def cached(server: Server, key: str, path: str, body: dict[str, Any]) -> list[int]:
    if path == "/generate":
        answer = asked(server, key, "POST", path, {"sampling_params": {"max_new_tokens": 1}, **body}).json()
        return [each["meta_info"]["cached_tokens"] for each in (answer if isinstance(answer, list) else [answer])]
    answer = asked(server, key, "POST", path, {"max_tokens": 1, **body}).json()
    return [answer["usage"]["prompt_tokens_details"]["cached_tokens"]]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "1" * 40}),
        ("/v1/completions", {"prompt": "2" * 40, "n": 2}),
        ("/v1/completions", {"prompt": ["3" * 40, "4" * 40]}),
        ("/v1/completions", {"prompt": "5" * 40, "cache_salt": "s"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "6" * 40}]}),
        ("/generate", {"text": "7" * 40}),
        ("/generate", {"text": ["8" * 40, "9" * 40]}),
        ("/generate", {"text": "0" * 40, "cache_salt": "s"}),
    ],
)
def test_no_key_finds_in_the_cache_what_another_one_asked(server: Server, path: str, body: dict[str, Any]) -> None:
    first, others, own = cached(server, ALICE, path, body), cached(server, BOB, path, body), cached(server, ALICE, path, body)

    assert {0} == {*first, *others}
    assert all(own)


def test_what_became_of_a_request_is_known_to_its_key_through_either_process(server: Server) -> None:
    public = asked(server, ALICE, "POST", "/v1/completions", {"prompt": "hi", "max_tokens": 1, "request_id": "mine"}).json()[
        "id"
    ]
    own = asked(server, ALICE, "POST", "/v1/completions", {"prompt": "hi", "max_tokens": 1}).json()["id"]

    for name in ("mine", public, own):
        found = {key: [asked(server, key, "GET", f"/requests/{name}") for _ in range(TRIES)] for key in (ALICE, ADMIN, BOB)}
        assert [(200, "ended", "length")] * TRIES * 2 == [
            (each.status_code, each.json()["status"], each.json()["reason"]) for each in (*found[ALICE], *found[ADMIN])
        ]
        assert [404] * TRIES == [each.status_code for each in found[BOB]]


def test_each_request_is_one_line_of_the_log_whichever_process_answers(server: Server) -> None:
    for number in range(TRIES):
        asked(server, BOB, "POST", "/v1/completions", {"prompt": "hi", "max_tokens": 1, "request_id": f"logged-{number}"})

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
        return [line for line in found if (line["id"] or "").startswith("cmpl-logged-")]

    eventually(lambda: len(lines()) >= TRIES)
    assert sorted(f"cmpl-logged-{number}" for number in range(TRIES)) == sorted(line["id"] for line in lines())
    assert {("bob", 200, 1, "length")} == {
        (line["key"], line["status"], line["completion_tokens"], line["finish_reason"]) for line in lines()
    }
    assert not [key for key in (ALICE, BOB, ADMIN) if key in server.log]


def test_refusals_are_counted_over_all_processes(server: Server) -> None:
    before = server.total("http_requests_refused_total")
    for _ in range(TRIES):
        asked(server, ALICE, "GET", "/debug/state")
        asked(server, "wrong", "GET", "/v1/models")

    assert 2 * TRIES == server.total("http_requests_refused_total") - before
