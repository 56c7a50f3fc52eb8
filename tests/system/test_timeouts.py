import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.raw_client import raw_client
from support.server import Server, python_server, scripted


@pytest.mark.parametrize(
    ("limit", "code"), [("first_token_timeout_s", "first_token_timeout"), ("idle_timeout_s", "idle_timeout")]
)
def test_a_stream_whose_tokens_are_late_is_ended_and_aborted(tmp_path: Path, limit: str, code: str) -> None:
    model = write_byte_checkpoint(tmp_path / "model")
    with python_server(scripted(model, scripted_step_ms=2000, **{limit: 0.1})) as server:
        answer = server.post("/v1/completions", {"prompt": "abcdef", "max_tokens": 6, "stream": True})
        events = answer.text.split("\n\n")

        assert (200, "data: [DONE]") == (answer.status_code, events[-2])
        assert code == json.loads(events[-3].removeprefix("data: "))["error"]["code"]
        assert 1 == server.metrics()['layered_llm_aborts_emitted_total{reason="timeout"}']
        server.wait_quiescent()


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Server]:
    """A server that runs one choice at a time, and has one that does not end by itself."""
    model = write_byte_checkpoint(tmp_path / "model", context_tokens=8192)
    settings = {"max_running_requests": 1, "queue_timeout_s": 0.2, "scripted_step_ms": 5}
    with python_server(scripted(model, **settings)) as server, raw_client(server.port) as client:
        client.post("/v1/completions", {"prompt": "busy", "max_tokens": 8000, "stream": True})
        client.read_until(b'"text"')
        yield server
        client.leave("RST")
        server.wait_quiescent()


def test_a_request_that_waits_too_long_in_the_queue_is_refused_late_and_leaves_nothing(busy: Server) -> None:
    whole = busy.post("/v1/completions", {"prompt": "abc", "n": 2})
    streamed = busy.post("/v1/completions", {"prompt": "abc", "stream": True})
    samples = busy.metrics()

    assert (503, "queue_timeout", "true") == (
        whole.status_code,
        whole.json()["error"]["code"],
        whole.headers["x-should-retry"],
    )
    *_, error, done, _nothing = streamed.text.split("\n\n")
    assert (200, "data: [DONE]") == (streamed.status_code, done)
    assert "queue_timeout" == json.loads(error.removeprefix("data: "))["error"]["code"]
    assert (2, 3) == (
        samples["layered_llm_queue_timeouts_total"],
        samples['layered_llm_choices_finished_total{reason="queue_timeout"}'],
    )
    assert (1, 0) == tuple(samples[f"layered_llm_requests_{place}"] for place in ("running", "waiting"))
    assert 0 == samples['layered_llm_aborts_emitted_total{reason="client_gone"}']
