import os
import threading
from collections.abc import Iterator

import pytest

from layered_llm.service.server import line_writer
from layered_llm.service.server.api import build_api
from layered_llm.service.server.line_writer import LineWriter
from layered_llm.service.settings.settings import Settings


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_lines_come_out_in_their_order_and_all_before_it_is_closed(pipe: tuple[int, int]) -> None:
    writer = LineWriter(pipe[1])
    for line in ("a", '{"b": 1}', "c"):
        writer.write(line)
    writer.close()

    assert b'layered-llm: a\n{"b": 1}\nlayered-llm: c\n' == os.read(pipe[0], 1000)


def test_whoever_takes_no_lines_delays_nobody_and_is_told_how_many_were_dropped(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, goes_on = threading.Event(), threading.Event()

    def write(_fd: int, data: bytes) -> int:
        taken.set()
        assert goes_on.wait(60)
        written.append(bytes(data))
        return len(data)

    written: list[bytes] = []
    monkeypatch.setattr("os.write", write)
    writer = LineWriter(pipe[1])
    writer.write("first")
    assert taken.wait(60)
    for _ in range(line_writer.MAX_WAITING_LINES + 5):
        writer.write("x")
    goes_on.set()
    while not writer._lines.empty():
        pass
    writer.write("last")
    writer.close()

    assert [b"layered-llm: 5 lines of the access log were dropped: nobody took them\n", b"layered-llm: last\n"] == written[-2:]


def test_without_lines_there_is_no_thread() -> None:
    threads = threading.active_count()
    writer = LineWriter()
    writer.close()

    assert threads == threading.active_count()


@pytest.mark.parametrize(
    ("settings", "is_terminal", "is_on"),
    [({}, False, False), ({}, True, True), ({"access_log": True}, False, True), ({"access_log": False}, True, False)],
)
def test_the_log_is_on_where_somebody_watches_unless_a_setting_says_otherwise(
    settings: dict[str, bool], is_terminal: bool, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)

    connection = build_api(Settings(**settings)).application._app.asgi_http_class  # type: ignore[arg-type,attr-defined] # Quart's

    assert is_on == (connection.args[1] is not None)
