import threading

import pytest
import trio
import trio.testing

from layered_llm.transport.http.body_parsing import LARGE_BODY_BYTES, parsed
from layered_llm.transport.http.openai_schema.fields import MAX_VALUES, MalformedBody, decode_object
from support.http_client import CHAT, COMPLETIONS, application, post
from support.http_engine import FakeEngine, accepting


def thread_of(body: bytes) -> tuple[int, int]:
    return threading.get_ident(), len(body)


async def test_a_small_body_is_parsed_at_once() -> None:
    here = threading.get_ident()

    assert (here, LARGE_BODY_BYTES) == await parsed(thread_of, b" " * LARGE_BODY_BYTES, trio.CapacityLimiter(1))


async def test_a_large_body_is_parsed_in_a_thread() -> None:
    here = threading.get_ident()

    there, size = await parsed(thread_of, b" " * (LARGE_BODY_BYTES + 1), trio.CapacityLimiter(1))

    assert there != here
    assert size == LARGE_BODY_BYTES + 1


async def test_a_parse_that_nobody_waits_for_keeps_its_place_until_it_ends() -> None:
    may_end = threading.Event()
    limiter = trio.CapacityLimiter(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(parsed, lambda _body: may_end.wait(timeout=60), b" " * (LARGE_BODY_BYTES + 1), limiter)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    borrowed = limiter.borrowed_tokens
    may_end.set()
    async with limiter:
        assert borrowed == 1


@pytest.mark.parametrize(("path", "field"), [(CHAT, "messages"), (COMPLETIONS, "prompt")])
async def test_a_large_body_is_judged_as_a_small_one_is(path: str, field: str) -> None:
    exchange = await post(application(FakeEngine(accepting)), path, {field: 1, "user": "x" * LARGE_BODY_BYTES})

    assert exchange.status == 400
    assert exchange.error()["param"] == field


@pytest.mark.parametrize(("item", "complaint"), [(b"[],", "lists and objects"), (b"1,", "values")])
async def test_a_body_of_too_many_values_is_refused_before_it_is_decoded(item: bytes, complaint: str) -> None:
    body = b'{"prompt": [' + item * (MAX_VALUES + 1) + b"1]}"

    with pytest.raises(MalformedBody, match=complaint):
        decode_object(body)
