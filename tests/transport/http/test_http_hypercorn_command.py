import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from layered_llm.transport.http.hypercorn_server.worker import survive_sigterm_in_spawned_worker
from support.http_client import CHAT, MESSAGES
from support.http_server import http_request
from support.http_worker import outlive_sigterm

TESTS = Path(__file__).parents[2]
STREAM = http_request("POST", CHAT, {"messages": MESSAGES, "stream": True}, headers="Connection: close\r\n")


class Server:
    """A `hypercorn` of its own process, on a port that it was given."""

    def __init__(self, arguments: list[str], drain_s: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.clients: list[socket.socket] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hypercorn", "-b", f"127.0.0.1:{self.port}", *arguments, "support.http_app"],
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "TEST_DRAIN_S": str(drain_s)},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def wait_ready(self, workers: int) -> None:
        assert self.process.stderr is not None
        lines = 0
        while lines < workers:
            line = self.process.stderr.readline()
            assert line, "hypercorn left"
            lines += line.count(b"Running on")

    def open_stream(self) -> socket.socket:
        """A stream whose headers have arrived."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        self.clients.append(client)
        client.sendall(STREAM)
        assert client.recv(17) == b"HTTP/1.1 200 OK\r\n"
        return client

    def wait_unhealthy(self) -> None:
        """Returns when `/health`, on a new connection each time, says that the server stops.

        A worker with nothing to drain leaves at once, and may take a connection with it that it has just accepted.
        """
        answer = b""
        while b" 503 " not in answer:
            with (
                socket.create_connection(("127.0.0.1", self.port), timeout=5) as client,
                contextlib.suppress(ConnectionResetError, BrokenPipeError),
            ):
                client.sendall(http_request("GET", "/health"))
                answer = client.recv(65536)


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*arguments: str, workers: int, drain_s: float = 0.5) -> Server:
        servers.append(Server(list(arguments), drain_s))
        servers[0].wait_ready(workers)
        return servers[0]

    yield start
    for server in servers:
        for client in server.clients:
            client.close()
        # The whole session: a worker that is left would keep the pipe open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.communicate()


def read_all(client: socket.socket) -> bytes:
    with client:
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize(
    ("arguments", "workers"), [([], 1), (["-k", "trio", "-w", "0"], 1), (["-w", "2"], 2)], ids=["bare", "trio 0", "two"]
)
def test_the_command_serves_under_trio_and_drains_at_sigterm(
    start: Callable[..., Server], arguments: list[str], workers: int
) -> None:
    server = start(*arguments, workers=workers)
    clients = [server.open_stream() for _ in range(4)]

    server.process.send_signal(signal.SIGTERM)
    server.wait_unhealthy()
    bodies = [read_all(client) for client in clients]
    code = server.process.wait(timeout=20)

    assert [body.count(b'"code":"shutting_down"') for body in bodies] == [1] * 4
    assert all(b"data: [DONE]\n\n" in body for body in bodies)
    assert code == 0


def test_a_worker_that_leaves_at_once_does_not_cut_the_stream_of_one_that_drains(start: Callable[..., Server]) -> None:
    # hypercorn's parent sends SIGTERM to all of its workers as soon as it sees one that has left.
    server = start("-w", "2", workers=2, drain_s=2.5)
    client = server.open_stream()

    server.process.send_signal(signal.SIGTERM)
    body = read_all(client)

    assert 1 == body.count(b'"code":"shutting_down"')
    assert body.rstrip().endswith((b"data: [DONE]", b"0"))
    assert 0 == server.process.wait(timeout=20)


def test_a_spawned_worker_outlives_sigterm_and_its_own_children_do_not() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=outlive_sigterm, args=(theirs,))
    process.start()

    assert ours.poll(10)
    assert ours.recv() == "SIG_DFL"
    process.join()
    assert process.exitcode == 0


def test_a_process_that_nobody_spawned_keeps_its_sigterm() -> None:
    before = signal.getsignal(signal.SIGTERM)

    survive_sigterm_in_spawned_worker()

    assert signal.getsignal(signal.SIGTERM) is before
