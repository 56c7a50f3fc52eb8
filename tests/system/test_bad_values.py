from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.bad_values import bad_values
from support.byte_checkpoint import write_byte_checkpoint
from support.http_client import CHAT, COMPLETIONS
from support.server import Server, python_server, scripted

TOKENS = 300
PROMPT = "abcdefg"
BESIDE = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0.7, "seed": 5, "logprobs": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=2 * TOKENS)
    with python_server(scripted(model, scripted_step_ms=1)) as server:
        yield server


def beside(server: Server) -> object:
    return server.post(COMPLETIONS, BESIDE).json()["choices"]


def test_wrong_numbers_get_an_error_and_change_nothing_of_a_request_beside(server: Server) -> None:
    some = [*list(bad_values(CHAT))[::6], *list(bad_values(COMPLETIONS))[::12]]
    alone = beside(server)
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        running = pool.submit(beside, server)
        for wrong in some:
            response = client.post(wrong.path, content=wrong.body, headers={"content-type": "application/json"})
            assert response.headers["content-type"] == "application/json"
            assert (response.status_code, wrong.is_described) == (200, True) or 400 == response.status_code, wrong
        assert alone == running.result()
    assert "Traceback" not in server.log
    server.wait_quiescent()
