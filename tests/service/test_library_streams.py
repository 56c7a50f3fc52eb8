import resource
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import trio

import layered_llm
from layered_llm import Choice, Delta, Engine, ParameterError, RejectReason, SamplingParams, Usage
from layered_llm.service.library.inputs import PromptLike
from support.byte_checkpoint import write_byte_checkpoint
from support.library import aborts_emitted, tiny_settings, until_quiescent

LONG = SamplingParams(max_tokens=400)
"""Far more than is read before the stream is left."""
LEAVINGS = ("break", "exception", "cancel")


class Left(Exception):  # noqa: N818 - no error
    pass


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with layered_llm.open_engine(write_byte_checkpoint(tmp_path), **tiny_settings()) as engine:
        yield engine
        await until_quiescent(engine)


async def read(engine: Engine, prompt: PromptLike, params: SamplingParams) -> tuple[list[Delta], Usage | None, str | None]:
    async with engine.open_stream(prompt, params) as stream:
        assert stream.usage is None
        deltas = [delta async for delta in stream]
    return deltas, stream.usage, stream.finish_reason


def text_of(deltas: Sequence[Delta], choice: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.choice == choice)


async def leave(engine: Engine, way: str, after: int) -> None:
    """Opens a stream and leaves it behind so many deltas."""
    with trio.CancelScope() as scope:
        try:
            async with engine.open_stream("abc", LONG) as stream:
                for _ in range(after):
                    await anext(stream)
                if way == "exception":
                    raise Left
                if way == "cancel":
                    scope.cancel()
                    await anext(stream)
        except Left:
            pass


async def test_a_text_comes_back_in_deltas(engine: Engine) -> None:
    deltas, usage, reason = await read(engine, "abc", SamplingParams(max_tokens=5))
    assert "abcab" == text_of(deltas)
    assert [97, 98, 99, 97, 98] == [token for delta in deltas for token in delta.token_ids]
    assert Usage(prompt_tokens=3, completion_tokens=5, cached_tokens=0) == usage
    assert "length" == reason == deltas[-1].finish_reason
    assert {None} == {delta.finish_reason for delta in deltas[:-1]}


async def test_messages_are_rendered_and_token_ids_are_taken_as_they_are(engine: Engine) -> None:
    params = SamplingParams(max_tokens=7, skip_special_tokens=False)
    deltas, usage, _ = await read(engine, [{"role": "user", "content": "hi"}], params)
    assert "<|turn|>user\nh" == text_of(deltas)
    assert usage is not None
    assert 19 == usage.prompt_tokens
    deltas, _, _ = await read(engine, [120, 121], SamplingParams(max_tokens=3))
    assert "xyx" == text_of(deltas)


async def test_each_choice_has_its_deltas(engine: Engine) -> None:
    async with engine.open_stream("abc", SamplingParams(max_tokens=4, n=2)) as stream:
        deltas = [delta async for delta in stream]
    assert ["abca", "abca"] == [text_of(deltas, choice) for choice in range(2)]
    assert {0: "length", 1: "length"} == stream.finish_reasons
    assert stream.usage is not None
    assert 8 == stream.usage.completion_tokens


async def test_a_stop_string_ends_the_choice(engine: Engine) -> None:
    deltas, usage, reason = await read(engine, "one two three", SamplingParams(max_tokens=50, stop=("two",)))
    assert "one " == text_of(deltas)
    assert ("stop", "two") == (reason, deltas[-1].matched_stop)
    assert usage is not None
    assert 7 == usage.completion_tokens


async def test_generate_gives_the_whole(engine: Engine) -> None:
    completion = await engine.generate("abc", SamplingParams(max_tokens=4, n=2))
    first = Choice(index=0, text="abca", token_ids=(97, 98, 99, 97), finish_reason="length")
    assert first == completion.choices[0]
    assert [0, 1] == [choice.index for choice in completion.choices]
    assert (first.text, first.token_ids, "length", None) == (
        completion.text,
        completion.token_ids,
        completion.finish_reason,
        completion.matched_stop,
    )
    assert Usage(prompt_tokens=3, completion_tokens=8, cached_tokens=0) == completion.usage


@pytest.mark.parametrize(("tells", "expected"), [(True, (97, 98)), (False, ())])
async def test_the_prompts_ids_are_told_where_they_are_asked_for(
    tells: bool, expected: tuple[int, ...], engine: Engine
) -> None:
    params = SamplingParams(max_tokens=1, tells_prompt_ids=tells)
    async with engine.open_stream("ab", params) as stream:
        assert expected == stream.prompt_token_ids
    assert expected == (await engine.generate("ab", params)).prompt_token_ids


async def test_many_prompts_keep_their_order_and_tell_their_progress(engine: Engine) -> None:
    told: list[layered_llm.Progress] = []
    prompts = [f"{number:03}" for number in range(40)]
    params = [SamplingParams(max_tokens=3 + number % 3) for number in range(40)]
    completions = await engine.generate_many(prompts, params, on_progress=told.append)
    expected = [(prompt * 2)[: each.max_tokens] for prompt, each in zip(prompts, params, strict=True)]
    assert expected == [completion.text for completion in completions]
    assert layered_llm.Progress(done=0, total=40, completion_tokens=0) == told[0]
    assert layered_llm.Progress(done=40, total=40, completion_tokens=sum(map(len, expected))) == told[-1]


async def test_no_prompts_have_no_completions(engine: Engine) -> None:
    assert [] == await engine.generate_many([])


async def test_all_prompts_are_checked_before_the_first_is_submitted(engine: Engine) -> None:
    with pytest.raises(ParameterError, match=r"prompts\[1\]"):
        await engine.generate_many(["abc", [-1]], LONG)
    assert 0 == aborts_emitted(engine)


async def test_the_first_failure_of_a_batch_aborts_the_others(engine: Engine) -> None:
    with pytest.raises(layered_llm.RequestRejected) as caught:
        await engine.generate_many(["abc", "x" * 600, "abc"], LONG)
    assert RejectReason.CONTEXT_LENGTH_EXCEEDED is caught.value.reason


async def test_a_callback_that_fails_is_heard_as_it_is(engine: Engine) -> None:
    def fail(progress: layered_llm.Progress) -> None:
        if progress.completion_tokens:
            raise Left

    with pytest.raises(Left):
        await engine.generate_many(["abc"], LONG, on_progress=fail)


async def test_a_rejected_prompt_says_why(engine: Engine) -> None:
    with pytest.raises(layered_llm.RequestRejected, match="512") as caught:
        await engine.generate("x" * 600)
    assert RejectReason.CONTEXT_LENGTH_EXCEEDED is caught.value.reason
    assert not caught.value.reason.is_retryable
    with pytest.raises(layered_llm.RequestRejected) as caught:
        await engine.generate([5000])
    assert RejectReason.TOKEN_OUT_OF_VOCABULARY is caught.value.reason


async def test_what_cannot_be_encoded_does_no_harm(engine: Engine) -> None:
    for prompt in ("\ud800", [1 << 31], [True], []):
        with pytest.raises(ParameterError):
            await engine.generate(prompt)
    assert "ab" == (await engine.generate("ab", SamplingParams(max_tokens=2))).text


@pytest.mark.parametrize("way", LEAVINGS)
async def test_leaving_a_stream_emits_one_abort_before_the_block_is_left(engine: Engine, way: str) -> None:
    for after in range(12):
        before = aborts_emitted(engine)
        await leave(engine, way, after)
        assert 1 == aborts_emitted(engine) - before
        await until_quiescent(engine)


async def test_a_stream_that_ended_emits_no_abort(engine: Engine) -> None:
    await read(engine, "abc", SamplingParams(max_tokens=3))
    assert 0 == aborts_emitted(engine)


async def test_a_cancelled_generate_aborts(engine: Engine) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.generate, "abc", LONG)
        with trio.fail_after(10):
            while not (await engine.state()).running:
                pass
        nursery.cancel_scope.cancel()
    assert 1 == aborts_emitted(engine)


async def test_a_stream_is_read_by_one_task_inside_its_block(engine: Engine) -> None:
    heard: list[str] = []

    async def read_one(stream: layered_llm.CompletionStream) -> None:
        try:
            heard.append((await anext(stream)).text[:1])
        except trio.BusyResourceError:
            heard.append("busy")

    async with engine.open_stream("abc", LONG) as stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_one, stream)
            nursery.start_soon(read_one, stream)
        assert ["busy", "a"] == heard
    with pytest.raises(layered_llm.EngineClosed):
        await anext(stream)


@pytest.mark.parametrize("after", range(6))
async def test_an_engine_is_quiescent_right_after_a_stream_was_left(engine: Engine, after: int) -> None:
    await leave(engine, LEAVINGS[after % 3], after)
    assert await engine.is_quiescent()


async def test_an_engine_with_an_open_stream_is_not_quiescent(engine: Engine) -> None:
    async with engine.open_stream("abc", LONG) as stream:
        await anext(stream)
        assert not await engine.is_quiescent()


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_stream_that_outlives_its_engine_was_closed_with_it(tmp_path: Path, is_read: bool) -> None:
    """Held by another task, which reads it or does so later."""
    ends: list[str] = []
    left = trio.Event()

    async def hold(engine: Engine, task_status: trio.TaskStatus[None]) -> None:
        async with engine.open_stream("abc", LONG) as stream:
            task_status.started()
            if not is_read:
                await left.wait()
            try:
                async for _ in stream:
                    pass
            except layered_llm.EngineClosed as error:
                ends.append(str(error))

    async with trio.open_nursery() as nursery:
        async with layered_llm.open_engine(write_byte_checkpoint(tmp_path), **tiny_settings(scripted_step_ms=5.0)) as engine:
            await nursery.start(hold, engine)
        left.set()
    assert ["the block of the engine was left"] == ends


async def test_what_waits_for_an_engine_that_is_left_was_closed_with_it(tmp_path: Path) -> None:
    errors: list[str] = []

    async def generate(engine: Engine) -> None:
        try:
            await engine.generate("abc", LONG)
        except layered_llm.EngineClosed as error:
            errors.append(str(error))

    async with (
        trio.open_nursery() as nursery,
        layered_llm.open_engine(write_byte_checkpoint(tmp_path), **tiny_settings(scripted_step_ms=5.0)) as engine,
    ):
        nursery.start_soon(generate, engine)
        while not (await engine.state()).open_requests:
            pass
    assert ["the block of the engine was left"] == errors


async def test_a_cancelled_read_loses_nothing(engine: Engine) -> None:
    deltas: list[Delta] = []
    async with engine.open_stream("abcdefgh", SamplingParams(max_tokens=60)) as stream:
        async for delta in stream:
            deltas.append(delta)
            with trio.CancelScope() as scope:
                scope.cancel()
                await anext(stream)
            assert scope.cancelled_caught
    assert ("abcdefgh" * 8)[:60] == text_of(deltas)


async def test_a_thousand_streams_left_anywhere_leave_nothing(engine: Engine) -> None:
    async def leave_some(first: int, behind: int) -> None:
        for number in range(first, behind):
            await leave(engine, LEAVINGS[number % 3], number % 5)

    async def leave_at_once(first: int, behind: int) -> None:
        async with trio.open_nursery() as nursery:
            for start in range(first, behind, 25):
                nursery.start_soon(leave_some, start, start + 25)

    await leave_at_once(0, 200)
    await until_quiescent(engine)
    warm_kib = resident_kib()
    for first in range(200, 1000, 200):
        await leave_at_once(first, first + 200)
        await until_quiescent(engine)
    assert 1000 == aborts_emitted(engine)
    assert 4096 > resident_kib() - warm_kib


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024
