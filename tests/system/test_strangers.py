"""Processes of the same user can connect to a server's sockets: what they send is counted and dropped, and ends nothing."""

import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from layered_llm.domain.ids import ApiId
from layered_llm.domain.messages.supervision import ApiGoodbye, ApiHello, Heartbeat, ProcessReady, Role, StateQuery
from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import eventually
from support.raw_client import raw_client
from support.server import Server, python_server, scripted

API = ApiId(0x3F2A)
NAMES = (b"stranger", b"api-3f2a", b"text-9", b"scheduler-9", b"runtime-9", b"\xff\x00")
WORDS = (
    (b"H", ApiHello(api=ApiId(1), pid=1)),
    (b"G", ApiGoodbye(api=API)),
    (b"Q", StateQuery(query=1)),
    (b"P", ProcessReady(role=Role.SCHEDULER, index=0)),
    (b"B", Heartbeat(role=Role.TEXT, index=-1)),
)
BAD_PID = msgspec.msgpack.encode({"api": API, "pid": -5})
NOISE = ((b"",), (b"noise",), (b"H", b"noise"), (b"c", b"\x80"), (b"H", BAD_PID), (b"",) * 6)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=8192)
    with python_server(scripted(model, scripted_step_ms=2)) as server:
        yield server


def sockets(server: Server) -> list[Path]:
    return sorted(path for path in server.home.rglob("*") if path.is_socket())


def say_all(address: Path) -> None:
    """Every word under every name, to one socket."""
    with zmq.Context() as context:
        for name in NAMES:
            with context.socket(zmq.DEALER) as socket:
                socket.setsockopt(zmq.IDENTITY, name)
                socket.setsockopt(zmq.LINGER, 1000)
                socket.connect(f"ipc://{address}")
                for tag, word in WORDS:
                    socket.send_multipart((tag, msgspec.msgpack.encode(word)))
                for frames in NOISE:
                    socket.send_multipart(frames)


def test_nothing_that_strangers_send_ends_the_engine_or_a_stream(server: Server) -> None:
    processes = {process.pid for process in server.processes()}
    with raw_client(server.port) as stream:
        stream.post("/v1/completions", {"prompt": "ab", "max_tokens": 4000, "stream": True})
        stream.read_until(b'"text"')
        for address in sockets(server):
            say_all(address)
        eventually(lambda: server.total("messages_dropped_total") >= 2 * len(NAMES) * len(NOISE))
        received = len(stream.received)
        stream.read_until(b'"text"', count=stream.received.count(b'"text"') + 20)
        stream.leave("RST")

    assert received < len(stream.received)
    assert processes == {process.pid for process in server.processes()}
    assert 200 == server.health()
    server.wait_quiescent()


def restart(server: Server) -> None:
    victim = server.process_of("runtime")
    victim.send(signal.SIGKILL)
    eventually(lambda: server.process_of("runtime").pid != victim.pid)
    server.wait_ready()


def test_a_restart_leaves_no_socket_of_the_generation_before(server: Server) -> None:
    before = sockets(server)
    for _ in range(2):
        restart(server)

    assert len(before) == len(sockets(server))
    assert {path.name for path in before} & {path.name for path in sockets(server)} == {"supervisor"}
