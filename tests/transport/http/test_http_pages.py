"""What web pages of others can do, and read, through a browser on the server's machine."""

from collections.abc import Mapping
from typing import Any

import attrs
import h2.config
import h2.connection
import h2.events
import pytest

from layered_llm.domain.finish import FinishReason
from layered_llm.service.model.settings_checks import check_before_start
from layered_llm.service.settings.settings import Settings, SettingsError
from layered_llm.transport.http.exchange.request_checks import Asking, PageRules
from layered_llm.transport.http.hypercorn_server.listening import Listening
from support.http_client import CHAT, COMPLETIONS, SETTINGS, Call, Exchange, application, get, post
from support.http_engine import FakeEngine, answering, ended, text_delta
from support.http_server import read_until, running

LOCAL, OPEN = Listening(is_loopback=True), Listening()
FOREIGN = "https://evil.example"
UI = "https://ui.example"
JSON = {"Content-Type": "application/json"}
STRICT = PageRules()
STOP = text_delta("a", finish_reason=FinishReason.STOP)


def with_rules(**rules: Any) -> Any:
    given = {name: frozenset(values) for name, values in rules.items()}
    return attrs.evolve(SETTINGS, pages=attrs.evolve(SETTINGS.pages, **given))


async def completed(headers: Mapping[str, str], listening: Listening = LOCAL, **rules: Any) -> Exchange:
    engine = FakeEngine(answering(STOP, ended()))
    return await post(
        application(engine, settings=with_rules(**rules), listening=listening), COMPLETIONS, {"prompt": "x"}, headers
    )


def status_of(host: str, *, rules: PageRules = STRICT, is_loopback: bool = True) -> int:
    asking = Asking(method="GET", hosts=[host], origins=[], content_types=[])
    error = rules.refused(asking, is_loopback=is_loopback)
    return 200 if error is None else error.status


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LocalHost:8000",
        "localhost.",
        "ui.localhost:1",
        "127.0.0.1",
        "127.0.0.1:8000",
        "127.1.2.3:80",
        "127.0.0.1.",
        "[::1]",
        "[::1]:8000",
        "[::ffff:127.0.0.1]:8000",
        "",
    ],
)
def test_loopback_is_reached_by_its_own_names(host: str) -> None:
    assert 200 == status_of(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "notlocalhost",
        "127.0.0.1.evil.example",
        "127.0.0.1.nip.io:8000",
        "0.0.0.0:8000",
        "[::]:8000",
        "10.0.0.1",
        "user@127.0.0.1:8000",
        "127.0.0.1@evil.example",
        "127.0.0.1:8000@evil.example",
        "localhost:80x",
        "localhost:",
        "localhost:123456",
        "localhost, evil.example",
        "evil.example#localhost",
        "localhost/..",
        "localhost..",
        "[::1",
        "::1",
        "[evil.example]",
        " ",
        "localhost\u00a0",
        "\u2024localhost",
    ],
)
def test_loopback_is_reached_by_no_other_name(host: str) -> None:
    assert (403, 200) == (status_of(host), status_of(host, is_loopback=False))


@pytest.mark.parametrize("host", ["llm.example", "LLM.example:443", "llm.example."])
def test_a_name_that_was_configured_is_taken(host: str) -> None:
    assert 200 == status_of(host, rules=PageRules(allowed_hosts=frozenset({"llm.example"})))
    assert 403 == status_of("other.example", rules=PageRules(allowed_hosts=frozenset({"llm.example"})))
    assert 200 == status_of("other.example", rules=PageRules(allowed_hosts=frozenset({"*"})))


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://localhost/health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET http://localhost@evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: localhost\r\nForwarded: host=localhost\r\n\r\n",
        b"OPTIONS /health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"HEAD /health HTTP/1.0\r\nHost: evil.example\r\n\r\n",
    ],
)
async def test_a_name_that_points_here_by_somebody_elses_will_gets_nothing(request_: bytes) -> None:
    async with running(application(FakeEngine())) as server:
        client = await server.connect()
        await client.send_all(request_)
        answer = await read_until(client, b"\r\n\r\n")
        await client.aclose()

    assert b" 403 " in answer.partition(b"\r\n")[0] + b" "


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_who_is_no_browser_needs_no_name(request_: bytes) -> None:
    async with running(application(FakeEngine())) as server:
        client = await server.connect()
        await client.send_all(request_)
        answer = await read_until(client, b"\r\n\r\n")
        await client.aclose()

    assert b" 200 " in answer.partition(b"\r\n")[0] + b" "


async def test_two_hosts_are_refused() -> None:
    async with running(application(FakeEngine())) as server:
        client = await server.connect()
        await client.send_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        answer = await read_until(client, b"\r\n\r\n")
        await client.aclose()

    assert answer.split(b" ")[1] in {b"400", b"403"}


@pytest.mark.parametrize(
    "origin",
    [
        FOREIGN,
        "null",
        "",
        "test",
        "http://",
        "http://test:81",
        "http://test.evil.example",
        "http://evil.example/test",
        "http://test@evil.example",
        "http://evil.example#@test",
        "file://test",
        "http://test http://evil.example",
        f"{UI}.evil.example",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_on_loopback_a_page_of_another_origin_gets_nothing(origin: str, method: str) -> None:
    headers = {"Origin": origin, **JSON}
    settings = with_rules(allowed_origins=[UI])

    answer = await Call(application(FakeEngine(), settings=settings)).run(method, "/health", b"{}", headers)

    assert 403 == answer.status
    assert "origin_not_allowed" == answer.error()["code"]
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", ["http://test", "http://TEST", "http://test:80"])
async def test_the_servers_own_page_works(origin: str) -> None:
    own = {"Origin": origin, **JSON}

    assert [200, 200] == [(await completed(own)).status, (await get(application(FakeEngine()), "/openapi.json", own)).status]


async def test_the_page_of_a_server_behind_tls_is_its_own() -> None:
    answers = [await completed({"Origin": f"https://{name}", **JSON}) for name in ("test:443", "test")]

    assert [200, 200] == [answer.status for answer in answers]


@pytest.mark.parametrize("listening", [LOCAL, OPEN])
@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain",
        "text/plain; application/json",
        "text/plain;charset=application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "*/*",
        "application/jsonx",
        "application/json, text/plain",
    ],
)
async def test_a_page_cannot_send_what_browsers_send_without_asking(content_type: str | None, listening: Listening) -> None:
    headers = {"Origin": "http://test", **({} if content_type is None else {"Content-Type": content_type})}
    engine = FakeEngine()
    app = application(engine, listening=listening)

    answers = [
        await post(app, path, b'{"prompt": "x"}', headers) for path in (COMPLETIONS, CHAT, "/flush_cache", "/abort_request")
    ]

    assert [415] * 4 == [answer.status for answer in answers]
    assert [] == engine.streams
    assert 0 == engine.flushes


@pytest.mark.parametrize("content_type", ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8"])
async def test_a_page_that_says_it_sends_json_is_answered_and_may_not_read_it(content_type: str) -> None:
    answer = await completed({"Origin": FOREIGN, "Content-Type": content_type}, OPEN)

    assert 200 == answer.status
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_without_an_origin_any_vague_type_will_do() -> None:
    assert [200, 200] == [(await completed({"Content-Type": each})).status for each in ("text/plain", "")]


@pytest.mark.parametrize("headers", [{}, {"Origin": FOREIGN}])
async def test_a_preflight_is_granted_nothing_without_a_setting(headers: dict[str, str]) -> None:
    asked = {**headers, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    answer = await Call(application(FakeEngine(), listening=OPEN)).run("OPTIONS", CHAT, b"", asked)

    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("listening", [LOCAL, OPEN])
async def test_a_page_of_a_configured_origin_may_ask_first_and_read(listening: Listening) -> None:
    app = application(FakeEngine(answering(STOP, ended())), settings=with_rules(allowed_origins=[UI]), listening=listening)
    wish = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }

    first = await Call(app).run("OPTIONS", CHAT, b"", {"Origin": UI, **wish})
    then = await post(app, COMPLETIONS, {"prompt": "x"}, {"Origin": UI, **JSON})
    wrong = await post(app, COMPLETIONS, {}, {"Origin": UI, **JSON})

    assert (204, 200, 400) == (first.status, then.status, wrong.status)
    assert {UI} == {answer.headers["access-control-allow-origin"] for answer in (first, then, wrong)}
    assert "POST" in first.headers["access-control-allow-methods"]
    assert "authorization,content-type,x-stainless-os" == first.headers["access-control-allow-headers"]
    assert {"Origin"} == {answer.headers["vary"] for answer in (first, then, wrong)}
    assert not {"content-length", "content-type"} & first.headers.keys()


async def test_every_page_may_read_where_all_origins_are_configured() -> None:
    answer = await completed({"Origin": FOREIGN, **JSON}, allowed_origins=["*"])

    assert (200, "*") == (answer.status, answer.headers["access-control-allow-origin"])


async def test_what_is_no_page_is_told_that_answers_differ_by_origin() -> None:
    answers = [await completed(headers, OPEN, allowed_origins=[UI]) for headers in ({}, {"Origin": FOREIGN, **JSON})]

    assert ["Origin", "Origin"] == [answer.headers["vary"] for answer in answers]
    assert not any("access-control-allow-origin" in answer.headers for answer in answers)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/nowhere", "/docs", "/debug/state"])
async def test_nothing_is_to_be_kept_by_caches(path: str) -> None:
    assert "no-store" == (await get(application(FakeEngine()), path)).headers["cache-control"]


async def test_the_authority_of_http2_is_the_name_that_counts() -> None:
    statuses: dict[int, bytes] = {}
    async with running(application(FakeEngine())) as server:
        client = await server.connect()
        connection = h2.connection.H2Connection(
            h2.config.H2Configuration(header_encoding=None, validate_outbound_headers=False)
        )
        connection.initiate_connection()
        for stream, name in ((1, "localhost"), (3, "evil.example")):
            head = [(":method", "GET"), (":path", "/health"), (":scheme", "http"), (":authority", name)]
            connection.send_headers(stream, head, end_stream=True)
        await client.send_all(connection.data_to_send())
        while len(statuses) < 2:
            for event in connection.receive_data(await client.receive_some()):
                if isinstance(event, h2.events.ResponseReceived):
                    statuses[event.stream_id] = dict(event.headers)[b":status"]
        await client.aclose()

    assert {1: b"200", 3: b"403"} == statuses


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_origin": ("ui.example",)},
        {"allowed_origin": ("https://ui.example/",)},
        {"allowed_origin": ("null",)},
        {"allowed_origin": ("https://*.example", "https://a b")},
        {"allowed_host": ("llm.example:8000",)},
        {"allowed_host": ("http://llm.example",)},
        {"allowed_host": ("",)},
    ],
)
def test_a_setting_that_no_browser_could_match_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"--allowed-(origin|host) must be \* or"):
        check_before_start(Settings(**settings))
