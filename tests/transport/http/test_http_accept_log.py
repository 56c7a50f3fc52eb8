import logging
import resource
import socket
from collections.abc import Iterator

import pytest
import trio

from layered_llm.transport.http.hypercorn_server.accept_log import SparseErrors
from support.http_client import application
from support.http_engine import FakeEngine
from support.http_server import http_request, read_until, running

RETRIES = 50


def record() -> logging.LogRecord:
    error = OSError("Too many open files")
    return logging.LogRecord("x", logging.ERROR, "x.py", 1, "accept returned", (), (OSError, error, None))


def test_a_record_passes_without_its_traceback_and_the_next_one_10_s_later() -> None:
    times = iter([0.0, 0.1, 9.9, 10.0, 10.1])
    errors = SparseErrors(lambda: next(times))
    records = [record() for _ in range(5)]
    assert [True, False, False, True, False] == [errors.filter(each) for each in records]
    assert [None, None] == [records[0].exc_info, records[3].exc_info]


@pytest.fixture
def no_descriptor_left() -> Iterator[None]:
    """Connections that are open stay, as long as the test does not lift it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_server_without_file_descriptors_says_so_once_and_goes_on_when_there_are_some(
    no_descriptor_left: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio._highlevel_serve_listeners.SLEEP_TIME", 0)
    async with running(application(FakeEngine())) as server:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            await client.connect(("127.0.0.1", server.port))
            for _ in range(RETRIES):
                await trio.lowlevel.checkpoint()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            stream = trio.SocketStream(client)
            await stream.send_all(http_request("GET", "/health"))
            await read_until(stream, b'{"status":"ok"}')
    (told,) = [each for each in caplog.records if each.name == "trio.serve_listeners"]
    assert (True, None) == ("EMFILE" in told.getMessage(), told.exc_info)
