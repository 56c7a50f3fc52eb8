import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import eventually
from support.server import hypercorn_server, scripted

STREAMS: Final = 8
"""Each order comes to either worker by chance: all to the one that has the request would be one chance in 256."""
BODY: Final = {"prompt": "abc", "max_tokens": 4000, "stream": True, "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=4096)


def test_any_worker_ends_any_request_by_its_id(model: Path) -> None:
    """The endpoint does not know the id that the server itself gave in its stream (raullenchai/Rapid-MLX 2342)."""
    settings = scripted(model, scripted_output="hash", scripted_step_ms=20, num_pages=8192)
    with hypercorn_server(settings, "-w", "2") as server, ExitStack() as opened:
        eventually(lambda: len(server.state()["api"]) == 2)
        streams = []
        for number in range(STREAMS):
            client = opened.enter_context(server.client())
            body = BODY if number % 2 else {**BODY, "request_id": f"mine-{number}"}
            response = opened.enter_context(client.stream("POST", "/v1/completions", json=body))
            streams.append((lines := response.iter_lines(), first_id(lines)))

        orders = [server.post("/abort_request", {"rid": public}) for _, public in streams]
        repeated = [server.post("/abort_request", {"rid": public}).status_code for _, public in streams]
        ends = [[line for line in lines if line][-2:] for lines, _ in streams]

        assert [f"cmpl-mine-{number}" for number in range(0, STREAMS, 2)] == [public for _, public in streams][::2]
        assert [(200, {"aborted": 1})] * STREAMS == [(order.status_code, order.json()) for order in orders]
        assert [404] * STREAMS == repeated
        assert [("aborted", "data: [DONE]")] * STREAMS == [(data(error)["error"]["code"], done) for error, done in ends]
        assert STREAMS == server.metrics()['layered_llm_aborts_emitted_total{reason="administrative"}']
        server.wait_quiescent()


def first_id(lines: Any) -> str:
    public: str = data(next(line for line in lines if line.startswith("data: ")))["id"]
    return public


def data(line: str) -> Any:
    return json.loads(line.removeprefix("data: "))
