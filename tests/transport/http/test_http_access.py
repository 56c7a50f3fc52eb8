import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from layered_llm.domain.messages.supervision import EngineState, Role, StateReport
from layered_llm.domain.metrics import metrics_of
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.api_keys import ANYBODY, ApiKeys, Holder
from layered_llm.transport.http.exchange.refusals import Refusals
from layered_llm.transport.http.hypercorn_server.listening import Listening, is_loopback_address
from support.http_client import COMPLETIONS, Call, Exchange, application, get, post
from support.http_engine import FakeEngine, accepting
from support.metrics import samples_by_name

USER, ADMIN = "sk-user", "sk-admin"
NO_KEYS = ApiKeys()
USERS = ApiKeys.of([("user", USER), ("other", "sk-other")])
ADMINS = ApiKeys.of([], [("admin:key-1", ADMIN)])
BOTH = ApiKeys.of([("user", USER), ("other", "sk-other")], [("admin:key-1", ADMIN)])
LOCAL, OPEN = Listening(is_loopback=True), Listening()
SCHEDULER = StateReport(
    query=1,
    role=Role.SCHEDULER,
    index=0,
    pid=1,
    open_requests=0,
    maps=(),
    gauges=(("running", 0), ("waiting", 0), ("pages_total", 1), ("pages_free", 1), ("pages_cached", 0), ("pages_used", 0)),
)
ADMINISTRATIVE = [
    ("POST", "/flush_cache", b""),
    ("POST", "/abort_request", b'{"abort_all": true}'),
    ("GET", "/debug/state", b""),
    ("GET", "/server_info", b""),
    ("GET", "/get_server_info", b""),
]


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def asked(keys: ApiKeys, listening: Listening, request: tuple[str, str, bytes], **headers: str) -> Exchange:
    engine = FakeEngine(reported=EngineState(query=1, reports=(SCHEDULER,), silent=()))
    method, path, body = request
    return await Call(application(engine, keys=keys, listening=listening)).run(method, path, body, headers)


@pytest.mark.parametrize("request_", ADMINISTRATIVE)
@pytest.mark.parametrize(
    ("keys", "listening", "headers", "status"),
    [
        pytest.param(NO_KEYS, LOCAL, {}, 200, id="on loopback without keys"),
        pytest.param(NO_KEYS, LOCAL, bearing("any"), 200, id="on loopback without keys, with a key of elsewhere"),
        pytest.param(NO_KEYS, OPEN, {}, 403, id="reached by others, without keys"),
        pytest.param(NO_KEYS, OPEN, bearing("any"), 403, id="reached by others, with a key of elsewhere"),
        pytest.param(NO_KEYS, OPEN, {"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1"}, 403, id="forwarded"),
        pytest.param(USERS, LOCAL, {}, 401, id="keys, none shown"),
        pytest.param(USERS, LOCAL, bearing(USER), 403, id="keys, on loopback, a user's"),
        pytest.param(USERS, OPEN, bearing(USER), 403, id="keys, a user's"),
        pytest.param(USERS, LOCAL, bearing("wrong"), 401, id="keys, a wrong one"),
        pytest.param(ADMINS, LOCAL, {}, 401, id="an admin key, none shown"),
        pytest.param(ADMINS, OPEN, {}, 401, id="an admin key, reached by others, none shown"),
        pytest.param(ADMINS, LOCAL, bearing("wrong"), 401, id="an admin key, a wrong one"),
        pytest.param(ADMINS, OPEN, bearing(ADMIN), 200, id="an admin key alone"),
        pytest.param(BOTH, LOCAL, {}, 401, id="both, none shown"),
        pytest.param(BOTH, LOCAL, bearing(USER), 403, id="both, a user's"),
        pytest.param(BOTH, OPEN, bearing(ADMIN), 200, id="both, the admin's"),
        pytest.param(BOTH, OPEN, {"X-Api-Key": ADMIN}, 200, id="both, the admin's in the other header"),
    ],
)
async def test_what_is_others_is_open_to_an_admin_or_on_a_loopback_without_keys(
    request_: tuple[str, str, bytes], keys: ApiKeys, listening: Listening, headers: dict[str, str], status: int
) -> None:
    assert status == (await asked(keys, listening, request_, **headers)).status


async def test_who_has_no_admin_key_is_told_how_to_get_one() -> None:
    for keys, headers in ((USERS, bearing(USER)), (NO_KEYS, {})):
        error = (await asked(keys, OPEN, ("POST", "/flush_cache", b""), **headers)).error()

        assert ("permission_error", "admin_key_required") == (error["type"], error["code"])
        assert "--admin-key-file FILE" in error["message"]


@pytest.mark.parametrize("path", ["/flush_cache", "/flush_cache/", "/flush%5fcache", "//flush_cache"])
async def test_a_path_that_is_written_otherwise_opens_nothing_more(path: str) -> None:
    answer = await asked(NO_KEYS, OPEN, ("POST", path, b""))

    assert answer.status in {308, 403, 404}


@pytest.mark.parametrize(
    "headers", [{"X-HTTP-Method-Override": "POST"}, {"X-Method-Override": "POST"}, {"X-HTTP-Method": "POST"}]
)
async def test_nothing_is_changed_by_a_get(headers: dict[str, str]) -> None:
    engine = FakeEngine()

    answers = [
        await get(application(engine), path, headers)
        for path in ("/flush_cache", "/abort_request", "/flush_cache?_method=POST")
    ]

    assert [405] * 3 == [answer.status for answer in answers]
    assert {"OPTIONS, POST"} == {answer.headers["allow"] for answer in answers}
    assert 0 == engine.flushes


@pytest.mark.parametrize(
    ("keys", "listening", "headers"), [(NO_KEYS, OPEN, {}), (ADMINS, LOCAL, {}), (BOTH, OPEN, bearing(ADMIN))]
)
async def test_generation_needs_no_more_than_before(keys: ApiKeys, listening: Listening, headers: dict[str, str]) -> None:
    assert 200 == (await asked(keys, listening, ("GET", "/v1/models", b""), **headers)).status


async def test_an_admin_ends_everybodys_requests_by_their_id_or_all_at_once() -> None:
    for order in ({"rid": "mine"}, {"abort_all": True}):
        engine = FakeEngine(accepting)
        app = application(engine, keys=BOTH, listening=OPEN)
        body = b'{"prompt": "hi", "request_id": "mine"}'
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Call(app).run, "POST", COMPLETIONS, body, bearing(USER))
            await engine.wait_opened()
            answer = await post(app, "/abort_request", order, bearing(ADMIN))

        assert (200, {"aborted": 1}) == (answer.status, answer.json())


@pytest.mark.parametrize(
    ("authorizations", "api_keys", "tenant"),
    [
        ([f"Bearer {USER}"], [], "user"),
        ([], [USER], "user"),
        ([], [f"  {USER} "], "user"),
        ([f"Bearer {USER}"], [USER], "user"),
        ([f"Bearer {USER}", f"bearer {USER}"], [], "user"),
        (["Basic dXNlcjp4"], [USER], "user"),
        (["Bearer "], [USER], "user"),
        ([f"Bearer {USER}"], [""], "user"),
        ([], [ADMIN], "admin:key-1"),
    ],
)
def test_a_key_is_taken_from_either_header(authorizations: list[str], api_keys: list[str], tenant: str) -> None:
    holder = BOTH.holder(authorizations, api_keys)

    assert isinstance(holder, Holder)
    assert tenant == holder.tenant


@pytest.mark.parametrize(
    ("authorizations", "api_keys"),
    [
        ([f"Bearer {USER}"], ["sk-other"]),
        ([f"Bearer {USER}"], ["wrong"]),
        ([f"Bearer {USER}"], [ADMIN]),
        ([f"Bearer {USER}", "Bearer sk-other"], []),
        ([], [USER, "sk-other"]),
        ([f"Bearer {USER}, Bearer {USER}"], []),
        ([], [f"{USER},{USER}"]),
        ([], [f"Bearer {USER}"]),
        ([f"Bearer {USER}\x00"], []),
        ([f"Bearer {USER} x"], []),
        ([], ["sk-user\u00e9"]),
        ([f"Digest {USER}"], []),
        ([], []),
    ],
)
def test_two_keys_or_what_is_no_key_open_nothing(authorizations: list[str], api_keys: list[str]) -> None:
    holder = BOTH.holder(authorizations, api_keys)

    assert isinstance(holder, ApiError)
    assert 401 == holder.status


async def test_a_key_in_the_query_opens_nothing() -> None:
    assert 401 == (await asked(USERS, OPEN, ("GET", f"/v1/models?api_key={USER}&key={USER}", b""))).status


@pytest.mark.parametrize("name", ["X-Api-Key", "x-api-key", "X-API-KEY"])
async def test_the_header_of_a_key_is_known_in_any_case(name: str) -> None:
    assert 200 == (await asked(USERS, OPEN, ("GET", "/v1/models", b""), **{name: USER})).status


@pytest.mark.parametrize(
    ("address", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%lo", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_loopback_is_known_by_its_address(address: str, is_loopback: bool) -> None:
    assert is_loopback == is_loopback_address(address)


def test_a_server_is_local_when_all_that_it_listens_on_is(tmp_path: Path) -> None:
    with ExitStack() as stack:
        local = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        all_addresses = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(tmp_path / "s"))
        expected: list[tuple[list[Any], bool]] = [
            ([local], True),
            ([unix], True),
            ([local, unix], True),
            ([all_addresses], False),
            ([local, all_addresses], False),
            ([], False),
        ]
        for sockets, is_loopback in expected:
            listening = Listening()
            listening.on(sockets)
            assert is_loopback == listening.is_loopback


def test_nothing_is_local_before_it_is_known_where_the_server_listens() -> None:
    assert not Listening().is_loopback
    assert ANYBODY == NO_KEYS.holder([])


async def test_what_is_refused_is_counted_by_its_reason() -> None:
    refusals = Refusals()
    app = application(FakeEngine(), keys=USERS, refusals=refusals)

    await get(app, "/v1/models")
    await post(app, "/flush_cache", {}, bearing(USER))
    await post(app, "/abort_request", {"abort_all": True}, bearing(USER))
    await get(app, "/health", {"Origin": "http://evil.example"})
    await post(app, "/health", {}, {"Origin": "http://test"})
    await get(app, "/v1/models", bearing(USER))

    assert {
        "invalid_api_key": 1,
        "admin_key_required": 2,
        "host_not_allowed": 0,
        "origin_not_allowed": 1,
        "unsupported_media_type": 1,
    } == {name.split('"')[1]: count for name, count in samples_by_name(metrics_of(refusals)).items()}
