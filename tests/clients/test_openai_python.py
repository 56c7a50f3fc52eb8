import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.client_programs import PROGRAMS, run_program
from support.server import SERVED_NAME, Server, python_server, scripted

KEY = "sk-right"
MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=512)
    with python_server(scripted(model, api_key=KEY, max_streams=1, scripted_step_ms=20)) as server:
        yield server


def client(server: Server, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0, timeout=30)


def test_a_wrong_key_is_an_authentication_error(guarded: Server) -> None:
    with client(guarded, "sk-wrong") as openai_client, pytest.raises(openai.AuthenticationError) as caught:
        openai_client.chat.completions.create(model=SERVED_NAME, messages=MESSAGES)

    assert (401, "invalid_api_key") == (caught.value.status_code, caught.value.code)


def test_a_full_server_is_a_rate_limit_error_that_says_when_to_come_again(guarded: Server) -> None:
    asked: Any = {"model": SERVED_NAME, "prompt": "x", "max_tokens": 400, "stream": True}
    with client(guarded) as openai_client, openai_client.completions.create(**asked) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            openai_client.completions.create(**asked)

    assert "server_full" == caught.value.code
    assert ("1", "true") == tuple(caught.value.response.headers[name] for name in ("retry-after", "x-should-retry"))


@pytest.mark.clients
def test_the_program_for_every_release_of_it_runs_with_the_projects_own(api: tuple[str, str], echo_server: Server) -> None:
    run_program([sys.executable, str(PROGRAMS / "openai_calls.py"), *api], timeout_s=60)

    echo_server.wait_quiescent()


def test_a_model_that_is_not_served_is_not_found(guarded: Server) -> None:
    with client(guarded) as openai_client, pytest.raises(openai.NotFoundError):
        openai_client.models.retrieve("nothing")
