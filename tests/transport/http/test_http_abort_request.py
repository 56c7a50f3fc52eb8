import json
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from layered_llm.domain.finish import AbortReason
from support.http_client import CHAT, COMPLETIONS, MESSAGES, Call, application, get, post
from support.http_engine import FIRST_REQUEST, FakeEngine, FakeStream, accepting, answering, text_delta

ABORT = "/abort_request"
CHAT_BODY = {"messages": MESSAGES}
CHAT_ID, COMPLETION_ID = f"chatcmpl-{FIRST_REQUEST:016x}", f"cmpl-{FIRST_REQUEST:016x}"


async def aborted_while_open(engine: FakeEngine, path: str, body: dict[str, Any], order: dict[str, Any]) -> tuple[Any, Any]:
    """The request's own exchange and that of the order to end it."""
    app = application(engine)
    call = Call(app)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", path, json.dumps(body).encode())
        await engine.wait_opened()
        await wait_all_tasks_blocked()
        answer = await post(app, ABORT, order)
    return call.exchange, answer


@pytest.mark.parametrize("name", ["rid", "id", "request_id"])
async def test_a_stream_that_is_ended_by_its_id_has_an_error_and_done_at_its_end(name: str) -> None:
    engine = FakeEngine(answering(text_delta("a")))

    exchange, answer = await aborted_while_open(engine, CHAT, {**CHAT_BODY, "stream": True}, {name: CHAT_ID})

    *chunks, error, done = exchange.events()
    assert CHAT_ID == chunks[0]["id"]
    assert ("aborted", "aborted", "[DONE]") == (error["error"]["type"], error["error"]["code"], done)
    assert (200, {"aborted": 1}) == (answer.status, answer.json())
    assert [AbortReason.ADMINISTRATIVE] == engine.aborts


async def test_a_whole_answer_that_is_ended_by_its_id_is_an_error_that_clients_do_not_repeat() -> None:
    engine = FakeEngine(accepting)

    exchange, answer = await aborted_while_open(engine, COMPLETIONS, {"prompt": "x"}, {"rid": COMPLETION_ID})

    assert (503, "aborted") == (exchange.status, exchange.error()["code"])
    assert "false" == exchange.headers["x-should-retry"]
    assert 200 == answer.status
    assert [AbortReason.ADMINISTRATIVE] == engine.aborts


async def test_the_id_of_a_body_with_several_prompts_ends_all_of_them() -> None:
    engine = FakeEngine(accepting)

    exchange, answer = await aborted_while_open(engine, COMPLETIONS, {"prompt": ["x", "y"]}, {"rid": COMPLETION_ID})

    assert (503, {"aborted": 2}) == (exchange.status, answer.json())
    assert [AbortReason.ADMINISTRATIVE] * 2 == engine.aborts


async def test_all_requests_are_ended_whatever_their_ids_also_those_that_are_not_queued_yet() -> None:
    def silent(stream: FakeStream) -> None:
        pass

    engine = FakeEngine(silent)

    exchange, answer = await aborted_while_open(engine, CHAT, CHAT_BODY, {"rid": "", "abort_all": True})

    assert (503, "aborted") == (exchange.status, exchange.error()["code"])
    assert {"aborted": 1} == answer.json()


BY_BODY: tuple[dict[str, str], dict[str, str]] = ({"request_id": "my-1"}, {})
BY_HEADER: tuple[dict[str, str], dict[str, str]] = ({}, {"X-Request-Id": "my-1"})


@pytest.mark.parametrize("asked", [BY_BODY, BY_HEADER, ({"request_id": "my-1"}, {"X-Request-Id": "other"})])
@pytest.mark.parametrize("rid", ["chatcmpl-my-1", "my-1"])
async def test_a_request_is_known_by_what_its_client_calls_it(asked: tuple[dict[str, str], dict[str, str]], rid: str) -> None:
    engine = FakeEngine(answering(text_delta("a")))
    app, (fields, headers) = application(engine), asked
    call = Call(app)
    async with trio.open_nursery() as nursery:
        body = json.dumps({**CHAT_BODY, "stream": True, **fields}).encode()
        nursery.start_soon(call.run, "POST", CHAT, body, headers)
        await engine.wait_opened()
        await wait_all_tasks_blocked()
        answer = await post(app, ABORT, {"rid": rid})

    assert "chatcmpl-my-1" == call.exchange.events()[0]["id"]
    assert (200, {"aborted": 1}) == (answer.status, answer.json())
    assert headers.get("X-Request-Id", "feed") == call.exchange.headers["x-request-id"]


async def test_all_prompts_of_a_body_have_its_clients_name() -> None:
    engine = FakeEngine(accepting)
    body = {"prompt": ["x", "y"], "request_id": "my-1"}

    _, answer = await aborted_while_open(engine, COMPLETIONS, body, {"rid": "cmpl-my-1"})

    assert {"aborted": 2} == answer.json()


@pytest.mark.parametrize("rid", [CHAT_ID, "chatcmpl-ffffffffffffffff", "my-request", "chatcmpl-"])
async def test_an_id_that_is_not_open_is_a_404(rid: str) -> None:
    answer = await post(application(FakeEngine()), ABORT, {"rid": rid})

    assert (404, "request_not_found") == (answer.status, answer.error()["code"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        ({}, "rid"),
        ({"rid": None}, "rid"),
        ({"rid": 7}, "rid"),
        ({"rid": ["chatcmpl-00"]}, "rid"),
        ({"id": "x" * 257}, "id"),
        ({"id": "\ud800"}, "id"),
        ({"rid": CHAT_ID, "abort_all": True}, "rid"),
        ({"rid": CHAT_ID, "id": CHAT_ID}, "rid"),
        ({"abort_all": 1}, "abort_all"),
        ({"abort_all": False}, "rid"),
    ],
)
async def test_a_body_that_names_no_request_is_a_400(body: dict[str, Any] | bytes, param: str | None) -> None:
    answer = await post(application(FakeEngine()), ABORT, body)

    assert (400, "invalid_request_error", param) == (answer.status, answer.error()["type"], answer.error()["param"])


async def test_all_is_fine_when_nothing_is_open() -> None:
    answer = await post(application(FakeEngine()), ABORT, {"abort_all": True})

    assert (200, {"aborted": 0}) == (answer.status, answer.json())


async def test_a_process_that_does_not_answer_makes_it_a_503_that_may_be_repeated() -> None:
    """The endpoint says 200 although the abort failed (sglang 34113)."""
    answer = await post(application(FakeEngine(is_abort_unanswered=True)), ABORT, {"rid": CHAT_ID})

    assert (503, "abort_unanswered", "5") == (answer.status, answer.error()["code"], answer.headers["retry-after"])


async def test_it_is_no_page_to_be_visited() -> None:
    assert 405 == (await get(application(FakeEngine()), ABORT)).status
