import pytest
import trio

from layered_llm.transport.http.exchange.api_keys import ApiKeys
from support.http_client import COMPLETIONS, Call, application, get, post
from support.http_engine import FIRST_REQUEST, FakeEngine, accepting

KEYS = ApiKeys.of([("alice", "sk-alpha"), ("bob", "sk-beta")], [("admin:key-1", "sk-admin")])
ID = f"cmpl-{FIRST_REQUEST:016x}"


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("name", [ID, "my/own-id", "cmpl-my/own-id"])
async def test_a_request_is_open_and_then_has_ended_for_its_own_key_and_the_admin(name: str) -> None:
    engine = FakeEngine(accepting)
    app = application(engine, keys=KEYS)
    call = Call(app)
    path = f"/requests/{name}"
    body = b'{"prompt": "hi"}' if name == ID else b'{"prompt": "hi", "request_id": "my/own-id"}'

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", COMPLETIONS, body, bearing("sk-alpha"))
        await engine.wait_opened()
        found = [await get(app, path, bearing(key)) for key in ("sk-alpha", "sk-admin", "sk-beta")]
        call.gone.set()
    later = [await get(app, path, bearing(key)) for key in ("sk-alpha", "sk-admin", "sk-beta")]
    nobodys = await get(app, path)

    open_ = {"id": name, "status": "open", "reason": None, "error": None}
    assert [(200, open_)] * 2 == [(answer.status, answer.json()) for answer in found[:2]]
    assert [(200, {**open_, "status": "ended", "reason": "stop"})] * 2 == [(each.status, each.json()) for each in later[:2]]
    assert [404, 404, 401] == [found[2].status, later[2].status, nobodys.status]
    assert found[2].body == later[2].body == (await get(app, "/requests/never", bearing("sk-beta"))).body


@pytest.mark.parametrize("name", ["never", "x" * 2000, ID, "cmpl-", "..", "%00"])
async def test_what_was_never_asked_is_not_found(name: str) -> None:
    answer = await get(application(FakeEngine()), f"/requests/{name}")

    assert (404, "request_not_found") == (answer.status, answer.error()["code"])


async def test_what_cannot_be_known_is_not_made_up() -> None:
    answer = await get(application(FakeEngine(is_abort_unanswered=True)), f"/requests/{ID}")

    assert (503, "5") == (answer.status, answer.headers["retry-after"])


async def test_a_request_is_asked_for_by_get_alone() -> None:
    assert 405 == (await post(application(FakeEngine()), f"/requests/{ID}", {})).status
