import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from layered_llm.service.model.checkpoint import CheckpointError
from layered_llm.service.model.fetching import fetch_from_hub
from layered_llm.service.settings.settings import Settings
from layered_llm.service.supervisor.supervisor_loop import find_checkpoint
from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import eventually
from support.fake_hub import MODEL, FakeHub, fake_hub
from support.processes import FoundProcess, processes_of_environment


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(write_byte_checkpoint(tmp_path / "files")) as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        yield hub


def downloads(tmp_path: Path) -> tuple[FoundProcess, ...]:
    """The processes that ask the hub for this test."""
    return processes_of_environment(f"HF_HOME={tmp_path / 'cache'}")


async def test_a_model_of_a_hub_is_fetched_with_a_progress_bar(hub: FakeHub, capfd: pytest.CaptureFixture[str]) -> None:
    found = await find_checkpoint(Settings(model=MODEL))

    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    assert MODEL == found.name
    assert [(hub.files / name).read_bytes() for name in names] == [(found.path / name).read_bytes() for name in names]
    assert "Fetching 4 files: 100%" in capfd.readouterr().err


@pytest.mark.usefixtures("hub")
async def test_what_was_fetched_once_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await fetch_from_hub(MODEL)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens

    assert before == await fetch_from_hub(MODEL)


@pytest.mark.usefixtures("hub")
async def test_a_model_that_the_hub_has_not_is_refused_in_one_line() -> None:
    with pytest.raises(CheckpointError, match=r"--model org/none: .*the hub has no such model") as caught:
        await fetch_from_hub("org/none")
    assert "\n" not in str(caught.value)


async def test_without_a_network_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError, match=r"--model org/model: .*no local cache.* try with a network") as caught:
        await fetch_from_hub(MODEL)
    assert "\n" not in str(caught.value)


async def test_a_download_ends_when_it_is_cancelled(hub: FakeHub, tmp_path: Path) -> None:
    hub.may_answer.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch_from_hub, MODEL)
        assert await trio.to_thread.run_sync(hub.is_asked.wait, 20)
        assert 1 == len(downloads(tmp_path))
        nursery.cancel_scope.cancel()

    assert () == downloads(tmp_path)


async def test_a_download_that_is_killed_says_so(hub: FakeHub, tmp_path: Path) -> None:
    hub.may_answer.clear()

    async def kill() -> None:
        assert await trio.to_thread.run_sync(hub.is_asked.wait, 20)
        (process,) = downloads(tmp_path)
        process.send(signal.SIGKILL)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        with pytest.raises(CheckpointError, match="the download ended with code -9"):
            await fetch_from_hub(MODEL)
    eventually(lambda: () == downloads(tmp_path))
