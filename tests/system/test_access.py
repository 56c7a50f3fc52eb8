from pathlib import Path

import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.server import hypercorn_server, scripted


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_checkpoint(tmp_path_factory.mktemp("model"))


def test_a_server_that_others_reach_warns_once_and_keeps_what_is_others_closed(model: Path) -> None:
    with hypercorn_server(scripted(model), "-w", "2", "--bind", "0.0.0.0:0") as server:
        answers = [
            server.post("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
            server.get("/debug/state"),
            server.post("/flush_cache", {}),
            server.post("/abort_request", {"abort_all": True}),
        ]
        log = server.log

    assert [200, 403, 403, 403] == [answer.status_code for answer in answers]
    assert 1 == log.count("warning: this server is reached from other machines")


def test_a_unix_socket_is_this_machines_own(model: Path, tmp_path: Path) -> None:
    with hypercorn_server(scripted(model), "--bind", f"unix:{tmp_path}/s") as server:
        state, log = server.get("/debug/state"), server.log

    assert 200 == state.status_code
    assert "warning" not in log
