import io
from pathlib import Path

import pytest

from layered_llm.service.chat.terminal import Pipe, Terminal
from layered_llm.service.settings.settings import chat_history, wants_colours


def test_terminal_is_not_sent_what_a_model_could_do_harm_with(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(has_colours=False).write("a\x1b]0;title\x07\x9b2J\r\x08\x7f\tb\nc é 😀")

    assert "a]0;title2J\tb\nc é 😀" == capsys.readouterr().out


def test_asides_notes_and_errors_are_coloured_where_colours_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(has_colours=True)
    terminal.write("said")
    terminal.write("thought", is_aside=True)
    terminal.note("noted")
    terminal.error("failed")

    assert "said\x1b[2mthought\x1b[0m\x1b[2mnoted\n\x1b[0m\x1b[31mfailed\x1b[0m\n" == capsys.readouterr().out


def test_pipe_gets_the_answer_as_it_is_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    pipe = Pipe()
    pipe.write("a\x1b[0m")
    pipe.write("thought", is_aside=True)
    pipe.note("noted")
    pipe.error("failed")

    assert ("a\x1b[0m", "layered-llm: failed\n") == capsys.readouterr()


def test_lines_of_a_pipe_have_any_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\r\n\ntwo"))
    pipe = Pipe()

    assert ["one", "", "two"] == [pipe.read_line(is_more=False) for _ in range(3)]
    with pytest.raises(EOFError):
        pipe.read_line(is_more=False)


def test_history_is_in_the_users_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert Path("/state/layered_llm/chat_history") == chat_history()

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert Path("/home/ada/.local/state/layered_llm/chat_history") == chat_history()


@pytest.mark.parametrize(
    ("variable", "value", "wanted"), [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False)]
)
def test_whether_colours_are_wanted(variable: str, value: str, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(variable, value)

    assert wanted is wants_colours()
