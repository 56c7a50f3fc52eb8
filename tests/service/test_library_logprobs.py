from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import layered_llm
from layered_llm import Engine, SamplingParams
from support.byte_checkpoint import write_byte_checkpoint
from support.library import tiny_settings, until_quiescent


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with layered_llm.open_engine(write_byte_checkpoint(tmp_path), **tiny_settings()) as engine:
        yield engine
        await until_quiescent(engine)


async def test_a_completion_has_the_logprobs_that_were_asked_for(engine: Engine) -> None:
    completion = await engine.generate("abc", SamplingParams(max_tokens=4, logprobs=2))
    assert [(97, b"a"), (98, b"b"), (99, b"c"), (97, b"a")] == [(one.token_id, one.token) for one in completion.logprobs]
    assert [-0.125, -0.25, -0.375, -0.5] == [one.logprob for one in completion.logprobs]
    assert [(b"b", -0.25), (b"c", -1.25)] == [(one.token, one.logprob) for one in completion.logprobs[1].top]


async def test_every_choice_has_its_own(engine: Engine) -> None:
    completion = await engine.generate("abc", SamplingParams(max_tokens=3, n=2, logprobs=0))
    assert [[b"a", b"b", b"c"]] * 2 == [[one.token for one in choice.logprobs] for choice in completion.choices]
    assert {()} == {one.top for choice in completion.choices for one in choice.logprobs}


async def test_deltas_add_up_to_the_completion(engine: Engine) -> None:
    params = SamplingParams(max_tokens=30, logprobs=1, stop=("bcab",))
    completion = await engine.generate("abc", params)
    async with engine.open_stream("abc", params) as stream:
        deltas = [delta async for delta in stream]
    assert completion.logprobs == tuple(one for delta in deltas for one in delta.logprobs)
    assert list(completion.token_ids) == [one.token_id for one in completion.logprobs]
    assert ("a", b"abcab") == (completion.text, b"".join(one.token for one in completion.logprobs))


async def test_nothing_is_told_unasked(engine: Engine) -> None:
    completion = await engine.generate("abc", SamplingParams(max_tokens=3))
    assert () == completion.logprobs


async def test_prompt_logprobs_are_told_for_each_choice(engine: Engine) -> None:
    completion = await engine.generate("abc", SamplingParams(max_tokens=2, n=2, prompt_logprobs=1))
    for choice in completion.choices:
        assert [(b"a", 0.0), (b"b", -0.25), (b"c", -0.375)] == [(one.token, one.logprob) for one in choice.prompt_logprobs]
        assert [0, 1, 1] == [len(one.top) for one in choice.prompt_logprobs]
    assert () == completion.logprobs
    assert 0 == completion.usage.cached_tokens


async def test_prompt_logprobs_are_the_same_when_the_prompt_is_in_the_cache(engine: Engine) -> None:
    prompt = "abcdefgh" * 12
    plain = await engine.generate(prompt, SamplingParams(max_tokens=2))
    again = await engine.generate(prompt, SamplingParams(max_tokens=2))
    asked = await engine.generate(prompt, SamplingParams(max_tokens=2, prompt_logprobs=0))
    assert 0 < again.usage.cached_tokens
    assert 0 == asked.usage.cached_tokens
    assert (plain.text, 96) == (asked.text, len(asked.prompt_logprobs))


async def test_a_prompt_alone_is_an_answer(engine: Engine) -> None:
    completion = await engine.generate("abc", SamplingParams(max_tokens=0, echo=True, prompt_logprobs=0))
    assert ("abc", (), 0) == (completion.text, completion.token_ids, completion.usage.completion_tokens)
    assert b"abc" == b"".join(one.token for one in completion.prompt_logprobs)


async def test_a_prompt_of_the_whole_context_is_scored(engine: Engine) -> None:
    prompt = "a" * engine.limits.context_tokens
    completion = await engine.generate(prompt, SamplingParams(max_tokens=0, echo=True, prompt_logprobs=0))
    assert (prompt, len(prompt)) == (completion.text, len(completion.prompt_logprobs))


async def test_every_token_of_a_prompt_but_the_first_has_its_rank(engine: Engine) -> None:
    completion = await engine.generate("abcde", SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert [None, 2, 3, 1, 2] == [one.rank for one in completion.prompt_logprobs]
