"""Helpers for tests of the library: settings of a tiny engine, and what is to be gone when it is closed."""

import threading
from pathlib import Path
from typing import Any, Final

import trio

from layered_llm import Engine
from support.metrics import samples_by_name

PATIENCE_S: Final = 20.0


def tiny_settings(**more: Any) -> dict[str, Any]:
    """The scripted device; give the model apart."""
    return {"device": "scripted", **more}


async def until_quiescent(engine: Engine) -> None:
    """Each look is a round of messages, so this waits for what is under way."""
    with trio.fail_after(PATIENCE_S):
        while not await engine.is_quiescent():
            pass


def aborts_emitted(engine: Engine) -> int:
    """All aborts that the program's side has put on their way so far."""
    samples = samples_by_name(engine._client.report(0).metrics)
    return int(sum(value for name, value in samples.items() if name.startswith("layered_llm_aborts_emitted_total")))


def engine_threads() -> list[str]:
    """Threads that only an engine has; those that trio keeps for a while, idle, are not among them."""
    mine = [thread.name for thread in threading.enumerate() if thread.name.startswith(("layered-llm", "zmq"))]
    system = [_thread_name(thread) for thread in Path("/proc/self/task").iterdir()]
    return mine + [name for name in system if name.startswith("ZMQ")]


def _thread_name(thread: Path) -> str:
    """The system's name of a thread; empty when it has ended since it was listed, before the file was opened or after."""
    try:
        return (thread / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
