import json
from pathlib import Path

import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.server import python_server, scripted


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
