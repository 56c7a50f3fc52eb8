import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import TIMEOUT_S, eventually
from support.fake_hub import MODEL, fake_hub
from support.raw_client import DONE, RawClient, raw_client
from support.server import Server, failing_server, hypercorn_server, python_server, scripted

STOP_S = 5.0
ENDLESS = {"prompt": "ab", "max_tokens": 4000, "stream": True}
SLOW = {"scripted_step_ms": 10, "drain_timeout_s": 0.2}
ENGINE_ROLES = ["runtime", "scheduler", "supervisor", "text"]

StartServer = Callable[..., AbstractContextManager[Server]]

LAUNCHERS: Final[dict[str, StartServer]] = {
    "python": python_server,
    "hypercorn": hypercorn_server,
    "hypercorn-w2": lambda settings, **options: hypercorn_server(settings, "-w", "2", **options),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=8192)


@pytest.fixture(params=LAUNCHERS)
def start(request: pytest.FixtureRequest) -> StartServer:
    return LAUNCHERS[request.param]


def engine_roles(server: Server) -> list[str]:
    return sorted(process.role for process in server.processes() if process.role in ENGINE_ROLES)


def open_stream(client: RawClient) -> None:
    client.post("/v1/completions", ENDLESS)
    client.read_until(b'"text"', count=3)


@contextmanager
def hang_up(handler: signal.Handlers) -> Iterator[None]:
    """What is started here does this at SIGHUP until it says otherwise."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_server_that_nohup_starts_outlives_its_terminal(model: Path) -> None:
    with hang_up(signal.SIG_IGN), python_server(scripted(model)) as server:
        server.process.send_signal(signal.SIGHUP)
        assert 200 == server.health()
        assert 0 == server.stop(signal.SIGTERM, STOP_S)


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("python", signal.SIGTERM),
        ("python", signal.SIGINT),
        ("python", signal.SIGHUP),
        ("hypercorn", signal.SIGTERM),
        ("hypercorn-w2", signal.SIGINT),
        ("hypercorn-w2", signal.SIGTERM),
    ],
)
def test_a_signal_ends_the_server_with_an_open_stream_in_good_order(launcher: str, number: signal.Signals, model: Path) -> None:
    with (
        hang_up(signal.SIG_DFL),
        LAUNCHERS[launcher](scripted(model, **SLOW)) as server,
        raw_client(server.port) as client,
    ):
        open_stream(client)
        code = server.stop(number, STOP_S)
        received = client.read_to_end()

        assert 0 == code
        assert "layered-llm: stopping; one open response has 0.2 s to end by itself\n" in server.log
        assert b'"code":"shutting_down"' in received.replace(b" ", b"")
        assert DONE in received
        server.wait_gone(STOP_S)


def test_two_workers_say_nothing_twice_and_name_the_address(model: Path) -> None:
    with hypercorn_server(scripted(model), "-w", "2") as server:
        assert 0 == server.stop(signal.SIGTERM, STOP_S)
        lines = [line for line in server.log.splitlines() if line.startswith("layered-llm: ")]
        assert sorted(set(lines)) == sorted(lines)
        assert f"layered-llm: ready on http://127.0.0.1:{server.port}/v1" in lines


def test_an_idle_server_leaves_at_once(model: Path) -> None:
    with python_server(scripted(model, drain_timeout_s=60)) as server:
        assert 0 == server.stop(signal.SIGTERM, STOP_S)
        assert server.log.endswith("\nlayered-llm: stopping\n")
        server.wait_gone(0)


def test_streams_get_the_drain_timeout_to_end_by_themselves(model: Path) -> None:
    with python_server(scripted(model, scripted_step_ms=10, drain_timeout_s=20)) as server, raw_client(server.port) as client:
        client.post("/v1/completions", {**ENDLESS, "max_tokens": 50})
        client.read_until(b'"text"', count=3)
        server.process.send_signal(signal.SIGTERM)

        assert b'"finish_reason":"length"' in client.read_to_end().replace(b" ", b"")
        assert 0 == server.process.wait(STOP_S)


def test_a_draining_server_takes_no_request_and_says_so_while_open_streams_go_on(model: Path) -> None:
    with python_server(scripted(model, scripted_step_ms=10, drain_timeout_s=20)) as server, raw_client(server.port) as client:
        open_stream(client)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.health() == 503)
        health, refused = server.get("/health"), server.post("/v1/completions", {"prompt": "ab"})
        client.read_until(b'"text"', count=client.received.count(b'"text"') + 3)
        client.leave("FIN")

        assert "stopping" == health.json()["phase"]
        assert (503, "shutting_down") == (refused.status_code, refused.json()["error"]["code"])
        assert 0 == server.process.wait(STOP_S)
        assert 0 == server.health()


def test_a_second_signal_does_not_wait_for_the_drain(model: Path) -> None:
    with python_server(scripted(model, scripted_step_ms=10, drain_timeout_s=60)) as server, raw_client(server.port) as client:
        open_stream(client)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.health() == 503)
        code = server.stop(signal.SIGTERM, STOP_S)

        assert -signal.SIGTERM == code
        server.wait_gone(STOP_S)


def test_a_supervisor_that_hangs_is_ended_with_the_server(model: Path) -> None:
    with python_server(scripted(model)) as server:
        os.kill(server.process_of("supervisor").pid, signal.SIGSTOP)

        assert 0 == server.stop(signal.SIGTERM)


def test_one_engine_serves_all_workers(model: Path) -> None:
    with hypercorn_server(scripted(model), "-w", "2") as server:
        eventually(lambda: len(server.state()["api"]) == 2)
        answers = [server.post("/v1/completions", {"prompt": "abc", "max_tokens": 3}).json() for _ in range(10)]

        assert ENGINE_ROLES == engine_roles(server)
        assert {"abc"} == {answer["choices"][0]["text"] for answer in answers}
        assert 10 == len({answer["id"] for answer in answers})
        assert 10 == server.total("requests_accepted_total")


def hold_text_workers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Text workers begin only when a file is there, whose path this returns."""
    begin = directory / "begin"
    (directory / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'layered_llm.service.workers.text' in sys.orig_argv:\n"
        f"    while not os.path.exists({str(begin)!r}): time.sleep(0.01)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH")))))
    return begin


def test_health_is_503_with_the_phase_until_the_model_is_loaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = hold_text_workers(tmp_path, monkeypatch)
    with python_server(scripted(model), is_ready=False) as server:
        eventually(lambda: server.health() == 503)
        loading = server.get("/health")
        refused = server.post("/v1/completions", {"prompt": "ab"})
        begin.touch()
        server.wait_ready()

    assert (503, "starting") == (loading.status_code, loading.json()["phase"])
    assert (503, "engine_starting") == (refused.status_code, refused.json()["error"]["code"])
    assert "retry-after" in refused.headers


def test_a_server_that_loads_can_be_stopped(
    start: StartServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_text_workers(tmp_path, monkeypatch)
    with start(scripted(model), is_ready=False) as server:
        eventually(lambda: server.health() == 503)

        assert 0 == server.stop(signal.SIGTERM, STOP_S)
        server.wait_gone(STOP_S)


def test_a_server_that_downloads_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub(write_byte_checkpoint(tmp_path / "files")) as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        hub.may_answer.clear()
        with python_server({"model": MODEL, "device": "scripted"}, is_ready=False) as server:
            assert hub.is_asked.wait(TIMEOUT_S)
            server.process_of("hub")

            assert 0 == server.stop(signal.SIGTERM, STOP_S)
            server.wait_gone(STOP_S)


def test_a_taken_port_is_an_error_before_any_engine_process_starts(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with failing_server(scripted(model, port=port)) as server:
            assert 1 == server.process.wait(30)
            assert server.log.startswith(f"layered-llm: cannot listen on 127.0.0.1:{port}: Address already in use; ")
            assert 1 == server.log.count("\n")
            assert [] == server.leftovers()


@pytest.mark.parametrize("missing", ["/nowhere", "./nowhere", "./nowhere.gguf"])
def test_a_missing_model_is_named_before_anything_starts(missing: str) -> None:
    with failing_server({"model": missing, "device": "scripted"}) as server:
        assert 2 == server.process.wait(30)
        assert f"layered-llm: --model {missing}: there is no such file or directory\n" == server.log


def test_a_tmpdir_that_is_too_long_for_sockets_does_not_keep_the_server_from_serving(model: Path) -> None:
    with python_server(scripted(model), home_name="d" * 120) as server:
        assert 200 == server.post("/v1/completions", {"prompt": "ab", "max_tokens": 2}).status_code


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config"),
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "GPT2LMHeadModel"),
    ],
    ids=["rope", "quantization", "architecture"],
)
def test_a_model_that_cannot_be_run_exactly_is_refused_by_name(config: dict[str, object], name: str, tmp_path: Path) -> None:
    directory = write_byte_checkpoint(tmp_path / "model")
    whole = json.loads((directory / "config.json").read_text())
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    (directory / "config.json").write_text(json.dumps({**whole, **sizes, **config}))
    with failing_server({"model": directory, "device": "cpu"}) as server:
        assert 1 == server.process.wait(60)
        *log, last = server.log.splitlines()
        assert last.startswith("layered-llm: failed: runtime-0: ")
        assert name in last
        assert last.removeprefix("layered-llm: failed: runtime-0: ") not in "\n".join(log)
        assert [] == [line for line in log if not line.startswith("layered-llm: ")]
        assert "Traceback" not in server.log


def test_two_servers_do_not_disturb_each_other(model: Path) -> None:
    with python_server(scripted(model)) as one, python_server(scripted(model, scripted_output="hash")) as other:
        answers = [server.post("/v1/completions", {"prompt": "abc", "max_tokens": 3}).json() for server in (one, other)]
        assert 0 == one.stop()

        assert answers[0]["choices"][0]["text"] == "abc"
        assert answers[1]["choices"][0]["text"] != "abc"
        assert 200 == other.health()


def test_nothing_outlives_a_killed_server_and_its_port_is_free_at_once(start: StartServer, model: Path) -> None:
    with start(scripted(model, **SLOW)) as server, raw_client(server.port) as client:
        open_stream(client)
        server.stop(signal.SIGKILL)
        client.read_to_end()
        server.wait_gone(3.0)

        with python_server(scripted(model, port=server.port)) as again:
            assert 200 == again.health()


def test_a_port_that_is_taken_ends_the_start_before_any_process(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with failing_server({**scripted(model), "port": port}) as server:
            assert 1 == server.process.wait(30)
            assert f"layered-llm: cannot listen on 127.0.0.1:{port}: Address already in use" in server.log
            assert "starting" not in server.log
