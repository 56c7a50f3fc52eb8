"""An engine in a process that was forked from its own: nothing of it is there but its memory."""

import multiprocessing
import os
import select
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import layered_llm
from layered_llm import LLM, EngineClosed, SamplingParams
from support.byte_checkpoint import write_byte_checkpoint
from support.library import PATIENCE_S, engine_threads, tiny_settings

SHORT: Final = SamplingParams(max_tokens=4)
CALLS: Final[dict[str, Callable[[LLM], object]]] = {
    "generate": lambda llm: llm.generate("abc"),
    "chat": lambda llm: llm.chat([{"role": "user", "content": "hi"}]),
    "tokenize": lambda llm: llm.tokenize("abc"),
    "detokenize": lambda llm: llm.detokenize([97]),
    "state": lambda llm: llm.state(),
    "is_quiescent": lambda llm: llm.is_quiescent(),
    "model_name": lambda llm: llm.model_name,
    "limits": lambda llm: llm.limits,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_byte_checkpoint(tmp_path)


@pytest.fixture
def llm(model: Path) -> Iterator[LLM]:
    with LLM(model, **tiny_settings()) as llm:
        yield llm
    assert [] == engine_threads()


def in_fork(work: Callable[[], object]) -> str:
    """What `work` says in a forked child, which leaves without any clean-up. A child that hangs fails the test."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(work()).encode())
        except BaseException:  # noqa: BLE001 - the parent says it
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        said = b""
        while select.select([reader], [], [], PATIENCE_S)[0] and (part := os.read(reader, 65536)):
            said += part
        os.kill(child, 9)
        os.waitpid(child, 0)
    finally:
        os.close(reader)
    return said.decode() or "nothing: it hangs"


def error_of(call: Callable[[], object]) -> str:
    try:
        return f"no error: {call()}"
    except EngineClosed as error:
        return str(error)


@pytest.mark.parametrize("call", CALLS)
def test_each_call_in_a_forked_process_says_at_once_to_which_process_the_engine_belongs(call: str, llm: LLM) -> None:
    said = in_fork(lambda: error_of(lambda: CALLS[call](llm)))
    assert f"the engine belongs to process {os.getpid()}, from which process " in said
    assert "abca" == llm.generate("abc", SHORT, progress=False)[0].text


def test_closing_or_dropping_the_engine_in_a_forked_process_ends_neither(model: Path) -> None:
    llm: Any = LLM(model, **tiny_settings())

    def close_and_drop() -> str:
        nonlocal llm
        llm.close()
        with llm:
            pass
        llm = None
        return "closed"

    assert "closed" == in_fork(close_and_drop)
    assert "abca" == llm.generate("abc", SHORT, progress=False)[0].text
    llm.close()


def test_a_lock_that_was_held_at_the_fork_holds_nothing_up(llm: LLM) -> None:
    def close() -> str:
        llm.close()
        return "closed"

    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        with llm._thread._lock:
            taken.set()
            release.wait(PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(PATIENCE_S)
    try:
        assert "closed" == in_fork(close)
    finally:
        release.set()
        holder.join()


def test_a_forked_process_may_open_an_engine_of_its_own(model: Path, llm: LLM) -> None:
    def open_another() -> str:
        with LLM(model, **tiny_settings()) as own:
            return own.generate("xyz", SHORT, progress=False)[0].text

    assert "xyzx" == in_fork(open_another)
    assert "abca" == llm.generate("abc", SHORT, progress=False)[0].text


def test_a_forked_worker_of_multiprocessing_is_told_too_and_ends(llm: LLM) -> None:
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    worker = context.Process(target=lambda: writer.send(error_of(lambda: llm.generate("abc"))))
    worker.start()
    assert reader.poll(PATIENCE_S)
    assert f"the engine belongs to process {os.getpid()}, from which process {worker.pid} was forked" in reader.recv()
    worker.join(PATIENCE_S)
    assert 0 == worker.exitcode
    assert "abca" == llm.generate("abc", SHORT, progress=False)[0].text


async def test_an_engine_and_its_streams_under_trio_are_told_too(model: Path) -> None:
    async with layered_llm.open_engine(model, **tiny_settings()) as engine, engine.open_stream("abc") as stream:
        await anext(stream)

        def use_all() -> str:
            coroutines = (engine.generate("abc"), engine.tokenize("abc"), engine.state(), stream.__anext__())
            return "\n".join(_end_of(coroutine) for coroutine in coroutines)

        said = in_fork(use_all).splitlines()
        assert 4 == len(said)
        assert [] == [line for line in said if f"the engine belongs to process {os.getpid()}" not in line]
        await anext(stream)


def _end_of(coroutine: Any) -> str:
    """Steps it by hand: a forked process has no loop that it could run in."""
    try:
        coroutine.send(None)
    except EngineClosed as error:
        return str(error)
    return "no error"
