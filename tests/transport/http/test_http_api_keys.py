from typing import Any

import pytest
import trio

from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.messages.supervision import EngineState, Role, StateReport
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.api_keys import ANYBODY, ApiKeys, Holder
from support.http_client import CHAT, COMPLETIONS, MESSAGES, Call, application, get, post
from support.http_engine import FakeEngine, accepting, answering, ended, text_delta

KEYS = ApiKeys.of([("alice", "sk-alpha"), ("bob", "sk-beta"), ("bob", "sk-beta-2")])
STOP = text_delta("!", token_ids=(2,), finish_reason=FinishReason.STOP)
BODY: dict[str, object] = {"prompt": "hi"}


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("authorization", "tenant"),
    [
        ("Bearer sk-alpha", "alice"),
        ("bearer sk-beta", "bob"),
        ("BEARER  sk-beta-2 ", "bob"),
    ],
)
def test_each_key_has_a_name_and_several_may_have_one(authorization: str, tenant: str) -> None:
    assert Holder(tenant=tenant) == KEYS.holder([authorization])


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer sk-alph",
        "Bearer sk-alphaa",
        "Bearer SK-ALPHA",
        "Basic sk-alpha",
        "sk-alpha",
        "Bearer é",
    ],
)
def test_anything_else_opens_nothing(authorization: str | None) -> None:
    refused = KEYS.holder([] if authorization is None else [authorization])

    assert isinstance(refused, ApiError)
    assert (401, "invalid_api_key") == (refused.status, refused.code)


def test_without_keys_everybody_is_nobody_in_particular() -> None:
    assert [ANYBODY] * 2 == [ApiKeys().holder(["Bearer whatever"], ["else"]), ApiKeys().holder([])]


def test_every_key_is_compared_wherever_the_right_one_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(known: bytes, presented: bytes) -> bool:
        compared.append(known)
        return known == presented

    monkeypatch.setattr("hmac.compare_digest", compare)
    for key in ("sk-alpha", "sk-beta-2", "wrong"):
        KEYS.holder([f"Bearer {key}"])

    assert 9 == len(compared)


def test_what_holds_the_keys_shows_none() -> None:
    assert "sk-" not in repr(KEYS)
    assert "digest" not in repr(KEYS)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/chat/completions", "/abort_request", "/flush_cache", "/nowhere"])
async def test_a_request_without_a_key_is_refused_as_openai_refuses_it(path: str) -> None:
    engine = FakeEngine(answering(STOP, ended()))

    answer = await post(application(engine, keys=KEYS), path, {**BODY, "messages": MESSAGES, "stream": True})

    assert 401 == answer.status
    assert "Bearer" == answer.headers["www-authenticate"]
    assert "application/json" == answer.headers["content-type"]
    error = answer.error()
    assert ("invalid_request_error", "invalid_api_key", None) == (error["type"], error["code"], error["param"])
    assert [] == engine.streams


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/small", "/get_model_info", "/version"])
async def test_what_the_server_tells_of_itself_needs_a_key_too(path: str) -> None:
    app = application(FakeEngine(), keys=KEYS)

    assert [401, 200] == [(await get(app, path)).status, (await get(app, path, bearing("sk-beta"))).status]


@pytest.mark.parametrize("path", ["/", "/health", "/health/", "/ready", "/metrics"])
async def test_probes_need_no_key(path: str) -> None:
    assert 200 == (await get(application(FakeEngine(), keys=KEYS), path)).status


async def test_a_preflight_needs_no_key() -> None:
    assert 204 == (await Call(application(FakeEngine(), keys=KEYS)).run("OPTIONS", CHAT)).status


async def test_a_key_is_ignored_where_none_is_needed() -> None:
    assert 200 == (await get(application(FakeEngine()), "/v1/models", bearing("whatever"))).status


@pytest.mark.parametrize(("key", "tenant"), [("sk-alpha", "alice"), ("sk-beta", "bob"), ("sk-beta-2", "bob")])
async def test_the_keys_name_is_the_tenant_of_every_prompt(key: str, tenant: str) -> None:
    engine = FakeEngine(answering(STOP, ended()))

    await post(application(engine, keys=KEYS), COMPLETIONS, {"prompt": ["a", "b"], "cache_salt": "salt"}, bearing(key))

    assert [(tenant, "salt")] * 2 == [(stream.placement.tenant, stream.placement.cache_salt) for stream in engine.streams]


@pytest.mark.parametrize("order", [{"request_id": "mine"}, {"rid": "cmpl-0000123400000000"}])
async def test_a_key_ends_no_request_of_another_one(order: dict[str, Any]) -> None:
    engine = FakeEngine(accepting)
    app = application(engine, keys=KEYS)
    call = Call(app)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", COMPLETIONS, b'{"prompt": "hi", "request_id": "mine"}', bearing("sk-alpha"))
        await engine.wait_opened()
        others = await post(app, "/abort_request", order, bearing("sk-beta"))
        was_open = not engine.streams[0].is_over
        own = await post(app, "/abort_request", order, bearing("sk-alpha"))

    assert was_open
    assert 404 == others.status
    assert (200, {"aborted": 1}) == (own.status, own.json())
    assert [AbortReason.ADMINISTRATIVE] == engine.aborts


async def test_no_key_shows_in_what_the_server_tells_or_logs(caplog: pytest.LogCaptureFixture) -> None:
    reports = (StateReport(query=1, role=Role.API, index=1, pid=1, open_requests=0, maps=()),)
    app = application(FakeEngine(reported=EngineState(query=1, reports=reports, silent=())), keys=KEYS)
    with caplog.at_level("DEBUG"):
        told = [await get(app, path, bearing("sk-alpha")) for path in ("/debug/state", "/metrics", "/v1/models", "/nowhere")]

    assert not [answer for answer in told if b"sk-alpha" in answer.body]
    assert "sk-alpha" not in caplog.text
