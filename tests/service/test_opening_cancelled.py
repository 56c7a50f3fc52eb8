"""Opening an engine is cancelled in each of its phases. The phase is held where it is until the opening is left, so that what
waited for it would never end."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

import layered_llm
from layered_llm import LLM
from layered_llm.service.processes.own_thread import NotWanted, Wanted, run_in_own_thread
from layered_llm.service.server import embedded
from layered_llm.service.supervisor import supervisor_loop
from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import eventually
from support.library import PATIENCE_S, engine_threads, tiny_settings

HOLDERS: Final = ("finding the model", "reading the tokenizer", "loading that never looks", "loading that looks")


@attrs.define(eq=False)
class Held:
    """A phase that has begun and does not end."""

    began: threading.Event = attrs.field(factory=threading.Event)
    on_begin: Callable[[], None] = lambda: None
    release: threading.Event = attrs.field(factory=threading.Event)

    def hold(self, *_: object, **__: object) -> Any:
        self.began.set()
        self.on_begin()
        assert self.release.wait(PATIENCE_S)
        raise NotWanted

    def hold_and_look(self, *_: object, check: Callable[[], None], **__: object) -> Any:
        self.began.set()
        self.on_begin()
        while True:
            check()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_byte_checkpoint(tmp_path)


@pytest.fixture
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held()
    where: dict[str, tuple[object, str, Callable[..., Any]]] = {
        "finding the model": (supervisor_loop, "resolve", held.hold),
        "reading the tokenizer": (embedded, "read_files", held.hold),
        "loading that never looks": (embedded, "open_device", held.hold),
        "loading that looks": (embedded, "open_device", held.hold_and_look),
    }
    target, name, held_up = where[request.param]
    monkeypatch.setattr(target, name, held_up)
    yield held
    held.release.set()
    eventually(lambda: not engine_threads())


@pytest.mark.parametrize("held", HOLDERS, indirect=True)
async def test_a_scope_that_is_cancelled_while_an_engine_opens_ends_at_once(held: Held, model: Path) -> None:
    with trio.fail_after(PATIENCE_S), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel_when_begun() -> None:
                await trio.to_thread.run_sync(held.began.wait, PATIENCE_S)
                scope.cancel()

            nursery.start_soon(cancel_when_begun)
            async with layered_llm.open_engine(model, **tiny_settings()):
                pytest.fail("it is never ready")
    assert scope.cancelled_caught
    assert not held.release.is_set()


@pytest.mark.parametrize("held", HOLDERS, indirect=True)
def test_ctrl_c_ends_a_blocking_opening_at_once(held: Held, model: Path) -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    held.on_begin = lambda: signal.pthread_kill(main_thread, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        LLM(model, **tiny_settings())
    assert not held.release.is_set()


async def test_a_scope_that_is_cancelled_while_a_model_is_fetched_ends_the_fetching_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetching = f"import os, pathlib; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(f'{{os.getpid()}} '); input()"
    monkeypatch.setattr("layered_llm.service.model.fetching.python_module", lambda *_: (sys.executable, "-c", fetching))

    def pid() -> int:
        text = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
        return int(text) if text.endswith(" ") else 0

    with trio.fail_after(PATIENCE_S), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel_when_begun() -> None:
                await trio.to_thread.run_sync(eventually, pid)
                scope.cancel()

            nursery.start_soon(cancel_when_begun)
            async with layered_llm.open_engine("nobody/this", **tiny_settings()):
                pytest.fail("it is never ready")
    assert [] == engine_threads()
    with pytest.raises(ProcessLookupError):
        os.kill(pid(), 0)


async def test_what_a_thread_raises_is_raised_in_the_task() -> None:
    def fail(_: Wanted) -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await run_in_own_thread("any", fail)


async def test_a_thread_that_notices_that_it_is_left_is_gone_with_its_scope() -> None:
    began = threading.Event()

    def look(wanted: Wanted) -> None:
        began.set()
        while True:
            wanted.wait(PATIENCE_S)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel_when_begun() -> None:
                await trio.to_thread.run_sync(began.wait, PATIENCE_S)
                scope.cancel()

            nursery.start_soon(cancel_when_begun)
            await run_in_own_thread("noticing", look)
    assert [] == [thread for thread in threading.enumerate() if thread.name == "noticing"]
