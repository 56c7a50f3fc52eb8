import re

import attrs
import pytest
import trio

from layered_llm.domain.finish import FinishReason
from support.bad_values import TABLES, BadValue, bad_values
from support.http_client import CHAT, COMPLETIONS, MESSAGES, Exchange, application, post
from support.http_engine import FakeEngine, FakeStream, ended, telling, text_delta


def check(wrong: BadValue, exchange: Exchange) -> None:
    """A value is taken only where it is described, and else named in an error."""
    about = (wrong.value[:40], exchange.body[:300])
    assert exchange.headers["content-type"] == "application/json", about
    if exchange.status == 200:
        assert wrong.is_described, about
        return
    assert exchange.status == 400, about
    error = exchange.error()
    assert len(error["message"]) < 400, about
    if not wrong.is_json:
        assert (None, "invalid_json") == (error["param"], error["code"]), about
    else:
        assert wrong.field.name == re.split(r"[.\[]", error["param"])[0], about


def answer_small_ones(stream: FakeStream) -> None:
    """All but the first request are answered at once; a choice that was not to be sampled has none."""
    if stream.params.max_tokens == 50:
        return
    stream.accept()
    choices = range(stream.params.n)
    stream.emit(*(text_delta("a", choice=choice, finish_reason=FinishReason.LENGTH) for choice in choices), ended())


@pytest.mark.parametrize("path", TABLES)
async def test_no_number_of_a_body_can_be_wrong_unnoticed_or_harm_a_request_beside(path: str) -> None:
    engine = FakeEngine(answer_small_ones, answerer=telling)
    app = application(engine)
    results: list[Exchange] = []

    async def beside() -> None:
        results.append(await post(app, CHAT, {"messages": MESSAGES, "max_tokens": 50}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beside)
        first = await engine.wait_opened()
        for wrong in bad_values(path):
            check(wrong, await post(app, path, wrong.body))
        first.accept()
        first.emit(text_delta("beside", finish_reason=FinishReason.STOP), ended())

    assert "beside" == results[0].json()["choices"][0]["message"]["content"]
    assert not any(stream.aborts for stream in engine.streams)


def test_every_number_is_among_them() -> None:
    names = {path: {wrong.field.name for wrong in bad_values(path)} for path in TABLES}

    assert {"max_tokens", "n", "temperature", "top_k", "seed", "priority", "logit_bias", "stop_token_ids"} <= names[CHAT]
    assert {"logprobs", "prompt", "truncate_prompt_tokens"} <= names[COMPLETIONS]
    assert {"sampling_params", "input_ids", "logprob_start_len"} <= names["/generate"]
    assert any('"max_new_tokens": -1' in wrong.value for wrong in bad_values("/generate"))
    assert all(field.name in names[CHAT] for field in TABLES[CHAT].values() if "minimum" in field.schema)


def test_a_value_that_a_table_describes_wrongly_is_found() -> None:
    (wrong, *_) = [each for each in bad_values(CHAT) if each.field.name == "n" and each.value == "0.5"]
    exchange = Exchange(status=200, headers={"content-type": "application/json"})
    with pytest.raises(AssertionError):
        check(wrong, exchange)
    check(attrs.evolve(wrong, value="2"), exchange)
