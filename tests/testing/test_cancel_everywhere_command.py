import shlex
from collections.abc import Callable
from typing import Any

import pytest

from layered_llm.domain.messages.api_text import Abort
from layered_llm.testing.command import main
from layered_llm.transport.outbox import Outbox

COMMAND = "cancel-everywhere"


@pytest.fixture
def lost_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    emit: Callable[..., None] = Outbox.emit

    def emit_all_but_aborts(self: Outbox[Any], message: object) -> None:
        if isinstance(message, Abort):
            self.release()
        else:
            emit(self, message)

    monkeypatch.setattr(Outbox, "emit", emit_all_but_aborts)


def test_a_right_build_gives_an_aligned_table_and_zero(capsys: pytest.CaptureFixture[str]) -> None:
    code = main([COMMAND, "--scenario", "length", "--seed", "1", "--every", "4", "--engine-every", "0", "--jobs", "1"])

    lines = capsys.readouterr().out.splitlines()
    assert 0 == code
    assert ["scenario", "length", "all"] == [line.split()[0] for line in lines]
    assert ["points", "runs", "failures"] == lines[0].split()[1:]
    assert 1 == len({len(line) for line in lines})


@pytest.mark.usefixtures("lost_aborts")
def test_a_failure_gives_one_and_the_line_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    code = main([COMMAND, "--scenario", "length", "--seed", "1", "--every", "4", "--engine-every", "40", "--jobs", "1"])

    repetitions = [line.split("again: ")[1] for line in capsys.readouterr().out.splitlines() if "again: " in line]
    assert 1 == code
    assert any("--step" in line for line in repetitions)
    assert any("--engine-step" in line for line in repetitions)
    for line in repetitions[:1] + repetitions[-1:]:
        assert 1 == main(shlex.split(line)[3:])
        assert line in capsys.readouterr().out


def test_several_processes_cover_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    words = [COMMAND, "--scenario", "stop-by-reader", "--seeds", "2", "--every", "4", "--engine-every", "0"]

    outputs = [(main([*words, "--jobs", jobs]), capsys.readouterr().out) for jobs in ("1", "2")]

    assert outputs[0] == outputs[1]


def test_scenarios_and_their_faults_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main([COMMAND, "--list"])
    assert "http-chat-stream             cancel, disconnect\n" in capsys.readouterr().out


def test_help_teaches_by_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([COMMAND, "--help"])

    assert "cancel-everywhere --scenario queued --seed 7 --fault error --step 3" in capsys.readouterr().out


def test_scenarios_without_the_fault_that_is_asked_for_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        COMMAND,
        "--scenario",
        "length",
        "--scenario",
        "http-refused",
        "--seed",
        "0",
        "--every",
        "8",
        "--engine-every",
        "0",
    ]

    assert 0 == main([*words, "--jobs", "1", "--fault", "disconnect"])
    assert ["scenario", "http-refused", "all"] == [line.split()[0] for line in capsys.readouterr().out.splitlines()]


def test_a_fault_that_no_scenario_has_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main([COMMAND, "--scenario", "length", "--fault", "death"])
    assert "none of these scenarios has such a fault" in capsys.readouterr().err
