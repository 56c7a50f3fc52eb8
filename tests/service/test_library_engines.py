import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import layered_llm
from layered_llm import (
    Engine,
    EngineClosed,
    EngineLost,
    EngineStartFailed,
    ParameterError,
    RequestRejected,
    SamplingParams,
    SettingsError,
)
from layered_llm.runtime.device.device import DeviceError
from layered_llm.runtime.scripted.scripts import EchoScript
from layered_llm.service.server import embedded
from layered_llm.service.server.embedded import failing_starts
from layered_llm.service.server.engine_host import EngineHost
from support.byte_checkpoint import write_byte_checkpoint
from support.library import engine_threads, tiny_settings, until_quiescent
from support.processes import processes_of_environment

LONG = SamplingParams(max_tokens=400)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_byte_checkpoint(tmp_path)


class Left(Exception):  # noqa: N818 - no error
    pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_page": 3}, r"num_page is no setting \(did you mean num_pages\?\)"),
        ({"num_pages": "3"}, "num_pages must be an integer, got '3'"),
        ({"num_pages": True}, "num_pages must be an integer, got True"),
        ({"num_pages": 0}, "num_pages must be at least 1, got 0"),
        ({"dtype": "int3"}, "dtype must be one of auto, float32"),
        ({"page_size": None}, "page_size must be an integer, got None"),
        ({"port": 8000}, "port is a setting of the server"),
        ({"log_level": "debug"}, "log_level is for processes=True"),
    ],
)
async def test_settings_are_checked(model: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        async with layered_llm.open_engine(model, **settings):
            pass


async def test_tokens_and_texts_without_any_request(model: Path) -> None:
    async with layered_llm.open_engine(model, **tiny_settings()) as engine:
        chat = await engine.tokenize([{"role": "user", "content": "hi"}])

        assert [*b"a\xc3\xa9"] == await engine.tokenize("aé")
        assert "<|turn|>user\nhi<|turn|>assistant\n" == await engine.detokenize(chat)
        assert "user\nhiassistant\n" == await engine.detokenize(chat, skip_special_tokens=True)
        assert ([], "") == (await engine.tokenize(""), await engine.detokenize([]))
        with pytest.raises(RequestRejected, match="1000, which is out of the vocabulary"):
            await engine.detokenize([1000])
        with pytest.raises(ParameterError, match=r"token_ids\[1\] must be a token id, got 'b'"):
            await engine.detokenize([1, "b"])  # type: ignore[list-item] # what is tested
        await until_quiescent(engine)


async def test_settings_come_from_the_environment_where_they_are_not_given(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERED_LLM_DEVICE", "scripted")
    monkeypatch.setenv("LAYERED_LLM_NUM_PAGES", "7")
    async with layered_llm.open_engine(model) as engine:
        assert 7 == (await engine.state()).pages_total
    async with layered_llm.open_engine(model, num_pages=9) as engine:
        assert 9 == (await engine.state()).pages_total


@pytest.mark.parametrize("processes", [False, True])
async def test_a_start_that_fails_says_why_in_one_line(tmp_path: Path, processes: bool) -> None:
    with pytest.raises(EngineStartFailed, match="there is no such file or directory") as caught:
        async with layered_llm.open_engine(tmp_path / "none", processes=processes, **tiny_settings()):
            pass
    assert 1 == len(str(caught.value).splitlines())
    assert [] == engine_threads()


@pytest.mark.parametrize("processes", [False, True])
async def test_a_start_in_which_several_parts_fail_is_one_failure(
    model: Path, processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with an exception that nobody expects, one in a task and one in a thread."""

    def fail(*_: object, **__: object) -> None:
        raise LookupError("first\nsecond")

    monkeypatch.setattr(embedded, "read_files", fail)
    monkeypatch.setattr(embedded, "open_device", fail)
    monkeypatch.setattr(EngineHost, "run", fail)
    with pytest.raises(EngineStartFailed, match=r"^LookupError: first$"):
        async with layered_llm.open_engine(model, processes=processes, **tiny_settings()):
            pass


CLOSED, FAILED = trio.ClosedResourceError(), EngineStartFailed("why")


@pytest.mark.parametrize(
    "raised",
    [
        FAILED,
        ExceptionGroup("", [FAILED]),
        ExceptionGroup("", [CLOSED, ExceptionGroup("", [FAILED, CLOSED])]),
        ExceptionGroup("", [FAILED, EngineStartFailed("why else")]),
    ],
)
def test_of_a_start_that_fails_in_several_ways_the_reason_is_raised(raised: Exception) -> None:
    with pytest.raises(EngineStartFailed) as caught, failing_starts():
        raise raised
    assert FAILED is caught.value


async def test_a_start_that_fails_while_it_is_cancelled_is_still_one_failure() -> None:
    async def start(scope: trio.CancelScope) -> None:
        with failing_starts():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                scope.cancel()
                raise EngineStartFailed("why")

    with trio.CancelScope() as scope, pytest.raises(EngineStartFailed, match="why"):
        await start(scope)


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), BaseExceptionGroup("", [FAILED, KeyboardInterrupt()])])
def test_an_interrupt_is_no_failed_start(raised: BaseException) -> None:
    with pytest.raises(type(raised)) as caught, failing_starts():
        raise raised
    assert raised is caught.value


def test_what_fails_after_the_start_is_raised_as_it_is() -> None:
    raised = ExceptionGroup("", [CLOSED, Left()])

    def fail_late() -> None:
        with failing_starts() as start:
            start.is_over = True
            raise raised

    with pytest.raises(ExceptionGroup) as caught:
        fail_late()
    assert raised is caught.value


def test_under_asyncio_an_engine_says_what_it_needs_and_what_does_without() -> None:
    async def open_it() -> None:
        async with layered_llm.open_engine():
            pass

    with pytest.raises(RuntimeError, match=r"^open_engine\(\) is for programs that run under trio, .*layered_llm\.LLM is "):
        asyncio.run(open_it())


CALLS: dict[str, Callable[[layered_llm.Engine], Awaitable[object]]] = {
    "generate": lambda engine: engine.generate("abc"),
    "generate_many": lambda engine: engine.generate_many(["abc"]),
    "open_stream": lambda engine: engine.open_stream("abc").__aenter__(),
    "tokenize": lambda engine: engine.tokenize("abc"),
    "detokenize": lambda engine: engine.detokenize([97]),
    "state": lambda engine: engine.state(),
    "is_quiescent": lambda engine: engine.is_quiescent(),
}


async def test_an_engine_that_is_used_under_another_loop_says_so_at_once_and_goes_on(model: Path) -> None:
    async def under_asyncio(call: Callable[[layered_llm.Engine], Awaitable[object]], engine: layered_llm.Engine) -> object:
        return await call(engine)

    async with layered_llm.open_engine(model, **tiny_settings()) as engine:
        for call in CALLS.values():
            for run in (partial(trio.run, call, engine), partial(asyncio.run, under_asyncio(call, engine))):
                with pytest.raises(RuntimeError, match=r"elsewhere than in the trio\.run\(\) that opened it; .*from_thread"):
                    await trio.to_thread.run_sync(run)
        assert "abca" == (await engine.generate("abc", layered_llm.SamplingParams(max_tokens=4))).text


async def test_an_engine_tells_what_it_is(model: Path) -> None:
    async with layered_llm.open_engine(str(model), max_seq_len_override=100, **tiny_settings()) as engine:
        assert (model.name, 100, 259) == (engine.model_name, engine.limits.context_tokens, engine.limits.vocabulary_size)


async def test_two_engines_do_not_know_of_each_other(tmp_path: Path) -> None:
    one, two = write_byte_checkpoint(tmp_path / "one"), write_byte_checkpoint(tmp_path / "two", context_tokens=64)
    async with (
        layered_llm.open_engine(one, **tiny_settings()) as first,
        layered_llm.open_engine(two, scripted_output="hash", **tiny_settings()) as second,
    ):
        echoed = await first.generate("abc", SamplingParams(max_tokens=6))
        hashed = await second.generate("abc", SamplingParams(max_tokens=6))
        assert "abcabc" == echoed.text
        assert echoed.text != hashed.text
        assert (512, 64) == (first.limits.context_tokens, second.limits.context_tokens)
        async with first.open_stream("abc", LONG):
            await until_quiescent(second)
    assert [] == engine_threads()


@pytest.mark.parametrize("way", ["exception", "cancel", "end"])
async def test_leaving_the_engine_ends_what_is_open(model: Path, way: str) -> None:
    left: list[Engine] = []
    with trio.CancelScope() as scope:
        try:
            async with layered_llm.open_engine(model, **tiny_settings()) as engine, engine.open_stream("abc", LONG) as stream:
                await anext(stream)
                left.append(engine)
                if way == "exception":
                    raise Left
                if way == "cancel":
                    scope.cancel()
                    await anext(stream)
        except Left:
            pass
    (engine,) = left
    assert [] == engine_threads()
    with pytest.raises(EngineClosed):
        await engine.generate("abc")
    with pytest.raises(EngineClosed):
        await engine.state()


async def test_what_the_block_raises_arrives_as_it_is(model: Path) -> None:
    error = Left()
    error.__cause__ = cause = ValueError()
    with pytest.raises(Left) as caught:
        async with layered_llm.open_engine(model, **tiny_settings()):
            raise error
    assert error is caught.value
    assert cause is caught.value.__cause__


async def test_a_cancelled_block_still_has_its_engine_while_it_cleans_up(model: Path) -> None:
    texts = []
    with trio.CancelScope() as scope:
        async with layered_llm.open_engine(model, **tiny_settings()) as engine:
            try:
                scope.cancel()
                await trio.lowlevel.checkpoint()
            finally:
                with trio.CancelScope(shield=True):
                    texts.append((await engine.generate("abc", SamplingParams(max_tokens=3))).text)
    assert ["abc"] == texts


async def test_an_engine_that_dies_is_lost(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> int:
        raise DeviceError("the device is gone")

    async with layered_llm.open_engine(model, **tiny_settings()) as engine, engine.open_stream("abc", LONG) as stream:
        monkeypatch.setattr(EchoScript, "next_token", fail)
        with pytest.raises(EngineLost, match="the device is gone"):
            async for _ in stream:
                pass
        with pytest.raises(EngineLost, match="the device is gone"):
            await engine.generate("abc")
    assert [] == engine_threads()


async def test_processes_serve_as_tasks_do_and_leave_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="llm-") as home:
        monkeypatch.setenv("TMPDIR", home)
        monkeypatch.setattr(tempfile, "tempdir", None)
        settings = tiny_settings(log_level="error")
        async with (
            layered_llm.open_engine(model, processes=True, **settings) as first,
            layered_llm.open_engine(model, processes=True, num_pages=40, **settings) as second,
        ):
            roles = sorted(process.role for process in processes_of_environment(f"TMPDIR={home}"))
            assert ["runtime", "runtime", "scheduler", "scheduler", "supervisor", "supervisor", "text", "text"] == roles
            assert "abcab" == (await first.generate("abc", SamplingParams(max_tokens=5))).text
            assert (128, 40) == ((await first.state()).pages_total, (await second.state()).pages_total)
            async with second.open_stream("abc", LONG) as stream:
                await anext(stream)
            await until_quiescent(second)
        assert () == processes_of_environment(f"TMPDIR={home}")
        assert [] == list((Path(home) / f"layered-llm-{os.getuid()}").iterdir())
        monkeypatch.setattr(tempfile, "tempdir", None)


async def test_processes_come_back_when_one_dies(model: Path) -> None:
    settings = tiny_settings(log_level="error", scripted_step_ms=20.0)  # so that the stream is open when its runtime dies
    async with layered_llm.open_engine(model, processes=True, **settings) as engine:
        async with engine.open_stream("abc", LONG) as stream:
            await anext(stream)
            runtime = next(report for report in (await engine._client.state()).reports if report.role == "runtime")
            os.kill(runtime.pid, 9)
            with pytest.raises(EngineLost, match="runtime-0 was killed by SIGKILL"):
                async for _ in stream:
                    pass
        assert "abc" == (await engine.generate("abc", SamplingParams(max_tokens=3))).text
        await until_quiescent(engine)


async def test_ids_of_the_model_that_no_token_has_are_refused_and_never_sampled(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    words = "270, which is out of the vocabulary of 259 tokens"
    async with layered_llm.open_engine(model, **tiny_settings()) as engine:
        assert 300 == engine.limits.vocabulary_size
        with pytest.raises(RequestRejected, match=f"The prompt holds token id {words}"):
            await engine.generate([1, 270], SamplingParams(max_tokens=1))
        with pytest.raises(RequestRejected, match=f"stop_token_ids holds {words}"):
            await engine.generate([1], SamplingParams(max_tokens=1, stop_token_ids=(270,)))
        with pytest.raises(RequestRejected, match=f"logit_bias holds {words}"):
            await engine.generate([1], SamplingParams(max_tokens=1, logit_bias={270: 1.0}))
        with pytest.raises(RequestRejected, match=f"tokens holds {words}"):
            await engine.detokenize([270])
        told = await engine.generate([258], SamplingParams(max_tokens=1, logprobs=3))
        assert [258, 0, 1] == [token.token_id for token in told.logprobs[0].top]
        await until_quiescent(engine)
