import json
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from layered_llm.domain.ids import RequestId, api_of
from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import TIMEOUT_S, eventually
from support.raw_client import DONE, RawClient, raw_client
from support.server import Server, hypercorn_server, python_server, scripted

ENDLESS = {"prompt": "ab", "max_tokens": 4000}
ENGINE_ROLES = ["text", "scheduler", "runtime", "supervisor"]
RESTARTS = 3
SETTINGS = {"scripted_step_ms": 10, "drain_timeout_s": 0.2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=8192)


def answer(server: Server) -> tuple[int, str]:
    response = server.post("/v1/completions", {"prompt": "abc", "max_tokens": 5})
    return response.status_code, response.json()["choices"][0]["text"]


def last_event(received: bytes) -> Any:
    """The last event before [DONE]."""
    events = [part for part in received.split(b"data: ") if part.startswith(b"{")]
    return json.loads(events[-1].partition(b"\n\n")[0])


def leave_streams(server: Server, count: int) -> None:
    """So many clients that leave in the middle of an answer."""
    for _ in range(count):
        with raw_client(server.port) as client:
            client.post("/v1/completions", {**ENDLESS, "stream": True})
            client.read_until(b'"text"')
            client.leave("RST")
    server.wait_quiescent()


def check_death(server: Server, role: str) -> None:
    leave_streams(server, 2)
    with raw_client(server.port) as stream, ThreadPoolExecutor(1) as whole:
        stream.post("/v1/completions", {**ENDLESS, "stream": True})
        stream.read_until(b'"text"', count=3)
        response = whole.submit(server.post, "/v1/completions", ENDLESS)
        eventually(lambda: server.total("open_requests") >= 6)  # two, in each of api, text and scheduler
        victim = server.process_of(role)
        victim.send(signal.SIGKILL)
        stream.read_until(DONE)
        failed = response.result(TIMEOUT_S)

    assert "engine_lost" == last_event(stream.received)["error"]["code"]
    assert (503, "engine_lost") == (failed.status_code, failed.json()["error"]["code"])
    server.wait_ready()
    assert victim.pid != server.process_of(role).pid
    assert (200, "abcab") == answer(server)
    leave_streams(server, 1)
    emitted, *outcomes = (server.total(f"aborts_{word}_total") for word in ("emitted", "handled", "late", "lost"))
    assert emitted == sum(outcomes)
    assert 3 == emitted


@pytest.mark.parametrize("role", ENGINE_ROLES)
def test_the_death_of_a_process_ends_every_open_request_and_the_engine_comes_back(role: str, model: Path) -> None:
    with python_server(scripted(model, **SETTINGS)) as server:
        check_death(server, role)


@pytest.mark.parametrize("role", ["runtime", "supervisor"])
def test_the_same_under_two_workers_of_hypercorn(role: str, model: Path) -> None:
    with hypercorn_server(scripted(model, **SETTINGS), "-w", "2") as server:
        check_death(server, role)


def worker_of(stream: RawClient) -> int:
    """The API process that answers a stream, as its id tells."""
    stream.read_until(b'"text"')
    found = re.search(rb'"id":"cmpl-([0-9a-f]{16})"', stream.received)
    assert found is not None
    return api_of(RequestId(int(found[1], 16)))


def test_a_killed_worker_takes_its_own_requests_along_and_no_other(model: Path) -> None:
    # hypercorn's parent shuts the server down when a worker dies; the others drain, and what ends in time is not cut.
    tokens = 400
    with hypercorn_server(scripted(model, **{**SETTINGS, "drain_timeout_s": 20}), "-w", "2") as server, ExitStack() as stack:
        eventually(lambda: len(server.state()["api"]) == 2)
        streams: dict[int, list[RawClient]] = {}
        while len(streams) < 2:
            stream = stack.enter_context(raw_client(server.port))
            stream.post("/v1/completions", {"prompt": "ab", "max_tokens": tokens, "stream": True})
            streams.setdefault(worker_of(stream), []).append(stream)
        killed, *_ = streams
        pids = {process["index"]: process["pid"] for process in server.state()["api"]}
        os.kill(pids[killed], signal.SIGKILL)
        lost = streams.pop(killed)
        eventually(lambda: server.metrics()['layered_llm_aborts_emitted_total{reason="text_worker"}'] == len(lost))
        for stream in (one for staying in streams.values() for one in staying):
            stream.read_until(DONE)
            assert b'"finish_reason":"length"' in stream.received
            assert b'"error"' not in stream.received
            assert tokens == len(b"".join(re.findall(rb'"text":"([ab]*)"', stream.received)))
        assert all(DONE not in stream.read_to_end() for stream in lost)


def test_health_is_503_while_the_engine_restarts_and_the_log_names_the_dead_process(model: Path) -> None:
    with python_server(scripted(model, **SETTINGS)) as server:
        server.process_of("runtime").send(signal.SIGKILL)
        eventually(lambda: server.health() == 503)
        health = server.get("/health")
        server.wait_ready()

        assert "restarting: runtime-0 was killed by SIGKILL" in server.log
        assert (503, "restarting") == (health.status_code, health.json()["phase"])


def restarted(server: Server, role: str, earlier: set[int]) -> bool:
    """Whether the server is ready again, or over."""
    if server.process.poll() is not None:
        return True
    found = {process.pid for process in server.processes() if process.role == role}
    return bool(found) and not found & earlier and server.health() == 200


def kill_until_it_fails(server: Server, role: str) -> int:
    """Kills the role's process whenever the engine is ready; how often that was."""
    killed: set[int] = set()
    while server.process.poll() is None and server.health() == 200:
        process = server.process_of(role)
        killed.add(process.pid)
        process.send(signal.SIGKILL)
        eventually(lambda: restarted(server, role, killed) or has_failed(server))
    return len(killed)


def has_failed(server: Server) -> bool:
    return "failed: " in server.log


@pytest.mark.parametrize("role", ["runtime", "supervisor"])
def test_an_engine_that_dies_again_and_again_ends_the_server(role: str, model: Path) -> None:
    with python_server(scripted(model, **SETTINGS)) as server:
        kills = kill_until_it_fails(server, role)

        assert 1 == server.process.wait(TIMEOUT_S)
        assert 2 <= kills <= RESTARTS + 1
        assert "layered-llm: failed: " in server.log
        server.wait_gone(5.0)


def test_a_failed_engine_under_hypercorn_stays_503_and_says_why(model: Path) -> None:
    with hypercorn_server(scripted(model, **SETTINGS)) as server:
        runtimes: set[int] = set()
        while server.health() == 200:
            process = server.process_of("runtime")
            runtimes.add(process.pid)
            process.send(signal.SIGKILL)
            eventually(lambda: restarted(server, "runtime", runtimes) or server.get("/health").json().get("phase") == "failed")
        refused = server.post("/v1/completions", {"prompt": "ab"})

        assert RESTARTS + 1 == len(runtimes)
        assert (503, "engine_failed") == (refused.status_code, refused.json()["error"]["code"])
        assert "retry-after" not in refused.headers


AS_FIRST_OF_A_CONTAINER = """
import ctypes, os, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a command as a process that orphans below it become children of, as they do of a container's first."""


def test_a_server_that_is_the_first_process_of_a_container_buries_what_its_supervisor_left(model: Path) -> None:
    with python_server(scripted(model), before=[sys.executable, "-c", AS_FIRST_OF_A_CONTAINER]) as server:
        for _ in range(2):
            orphans = [process.pid for process in server.processes() if process.role in ("text", "scheduler", "runtime")]
            assert 3 == len(orphans)
            server.process_of("supervisor").send(signal.SIGKILL)
            eventually(lambda: not [pid for pid in orphans if Path(f"/proc/{pid}").exists()])  # noqa: B023 - is called here
            server.wait_ready()
            assert (200, "abcab") == answer(server)


@pytest.mark.parametrize("role", ENGINE_ROLES)
def test_a_stopped_process_shows_in_health_and_debug_state_until_it_goes_on(role: str, model: Path) -> None:
    with python_server(scripted(model, **SETTINGS)) as server:
        victim = server.process_of(role)
        victim.send(signal.SIGSTOP)
        try:
            eventually(lambda: server.health() == 503)
            said, silent = server.get("/health").json(), server.state()["silent"]
        finally:
            victim.send(signal.SIGCONT)
        eventually(lambda: server.health() == 200)

        assert "stalled" == said["phase"]
        assert role in said["detail"]
        assert role in {name.partition("-")[0] for name in silent}
        assert victim.pid == server.process_of(role).pid
        assert (200, "abcab") == answer(server)
