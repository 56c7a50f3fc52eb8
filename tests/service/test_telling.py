import pytest

from layered_llm.domain.messages.supervision import EnginePhase, EngineStatus
from layered_llm.service.server.console import farewell, phase_line, trial_line


@pytest.mark.parametrize(
    ("open_responses", "told"),
    [
        (0, "stopping"),
        (1, "stopping; one open response has 2.5 s to end by itself"),
        (3, "stopping; 3 open responses have 2.5 s to end by themselves"),
    ],
)
def test_only_what_is_open_is_given_time(open_responses: int, told: str) -> None:
    assert told == farewell(open_responses, 2.5)


def status(phase: EnginePhase) -> EngineStatus:
    return EngineStatus(phase=phase, generation=1, supervisor_pid=1, detail="loading the model")


def test_a_server_that_is_ready_names_its_addresses() -> None:
    urls = ("http://127.0.0.1:8000", "https://[::1]:8000", "unix:/run/llm")
    said = "ready on http://127.0.0.1:8000/v1, https://[::1]:8000/v1, unix:/run/llm"
    assert said == phase_line(status(EnginePhase.READY), urls, 1)
    assert "ready" == phase_line(status(EnginePhase.READY), (), 1)


def test_a_server_that_is_ready_says_what_to_try() -> None:
    urls = ("unix:/run/llm", "http://127.0.0.1:8000")
    assert trial_line(urls, needs_key=False).startswith("try: curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type")
    assert " -H 'Authorization: Bearer KEY' " in trial_line(urls, needs_key=True)
    assert "" == trial_line(("unix:/run/llm",), needs_key=False)


def test_one_worker_says_what_is_the_same_for_all() -> None:
    starting = status(EnginePhase.STARTING)
    assert ["starting: loading the model", "", ""] == [phase_line(starting, (), number) for number in (1, 2, 3)]
    assert "worker 2 is ready" == phase_line(status(EnginePhase.READY), ("http://127.0.0.1:8000",), 2)
