import attrs
import pytest
from openai.types import Model

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.supervision import EnginePhase
from layered_llm.transport.http.exchange.drain import Drain
from support.http_client import CHAT, MESSAGES, SETTINGS, Call, application, get, post
from support.http_engine import READY, FakeEngine, answering, ended, text_delta

END = text_delta("x", finish_reason=FinishReason.STOP)


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/chat/completions", "/v1/chat/completions/", "/chat/completions/"],
)
async def test_the_chat_endpoint_is_found_under_all_its_names(path: str) -> None:
    exchange = await post(application(FakeEngine(answering(END, ended()))), path, {"messages": MESSAGES})

    assert exchange.json()["object"] == "chat.completion"


@pytest.mark.parametrize("path", ["/v1/completions", "/completions", "/v1/completions/"])
async def test_the_completions_endpoint_is_found_under_all_its_names(path: str) -> None:
    exchange = await post(application(FakeEngine(answering(END, ended()))), path, {"prompt": "x"})

    assert exchange.json()["object"] == "text_completion"


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/"])
async def test_the_served_models_are_listed_with_their_context(path: str) -> None:
    exchange = await get(application(FakeEngine()), path)

    assert exchange.json()["object"] == "list"
    assert [(m["id"], m["max_model_len"], m["created"]) for m in exchange.json()["data"]] == [
        ("small", 2048, SETTINGS.created_s),
        ("little", 2048, SETTINGS.created_s),
    ]
    for model in exchange.json()["data"]:
        Model.model_validate(model)


async def test_the_context_of_a_model_is_unknown_until_it_is_loaded() -> None:
    engine = FakeEngine(current=attrs.evolve(READY, phase=EnginePhase.STARTING, limits=None))

    exchange = await get(application(engine), "/v1/models")

    assert exchange.json()["data"][0]["max_model_len"] is None


async def test_a_model_with_a_slash_in_its_name_can_be_retrieved() -> None:
    app = application(FakeEngine(), settings=attrs.evolve(SETTINGS, served_model_names=("org/small",)))

    assert (await get(app, "/v1/models/org/small")).json()["id"] == "org/small"
    assert (await get(app, "/v1/models/org/other")).error()["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/models/%2Fa%2Fb", "/v1/models//a/b", "/v1/models/%2fa/b", "/models//a/b"])
async def test_a_model_whose_name_is_a_path_is_not_the_one_without_the_slash(path: str) -> None:
    app = application(FakeEngine(), settings=attrs.evolve(SETTINGS, served_model_names=("a/b", "/a/b")))

    assert "/a/b" == (await get(app, path)).json()["id"]
    assert "a/b" == (await get(app, "/v1/models/a/b")).json()["id"]


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_a_ready_engine_is_healthy(path: str) -> None:
    exchange = await get(application(FakeEngine()), path)

    assert (exchange.status, exchange.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("phase", [phase for phase in EnginePhase if phase is not EnginePhase.READY])
async def test_health_tells_why_the_engine_takes_nothing(phase: EnginePhase) -> None:
    engine = FakeEngine(current=attrs.evolve(READY, phase=phase, detail="because"))

    exchange = await get(application(engine), "/health")

    assert exchange.status == 503
    assert exchange.json() == {"status": "unavailable", "phase": phase.value, "detail": "because"}


async def test_health_tells_of_a_drain() -> None:
    drain = Drain(2.0)
    drain.begin()

    exchange = await get(application(FakeEngine(), drain=drain), "/health")

    assert (exchange.status, exchange.json()["phase"]) == (503, "stopping")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_an_unknown_route_or_method_is_a_json_error(method: str, path: str, status: int, code: str) -> None:
    exchange = await Call(application(FakeEngine())).run(method, path)

    assert (exchange.status, exchange.error()["code"]) == (status, code)
    assert exchange.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1//completions", 404), ("//v1/completions", 200), ("/v1/completions/", 200), ("/v1/completions//", 404)],
)
async def test_no_path_is_redirected(path: str, status: int) -> None:
    headers = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "elsewhere"}
    engine = FakeEngine(answering(text_delta("x", finish_reason=FinishReason.STOP), ended()))
    exchange = await post(application(engine), path, {"prompt": "x"}, headers)

    assert (status, "application/json", None) == (
        exchange.status, exchange.headers["content-type"], exchange.headers.get("location"),
    )  # fmt: skip


async def test_a_wrong_method_is_told_the_right_one() -> None:
    exchange = await Call(application(FakeEngine())).run("GET", CHAT)

    assert "POST" in exchange.headers["allow"]


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "200"}])
async def test_a_body_over_the_limit_is_a_413(headers: dict[str, str]) -> None:
    app = application(FakeEngine(), settings=attrs.evolve(SETTINGS, max_body_bytes=100))

    exchange = await post(app, CHAT, b"x" * 200, headers)

    assert (exchange.status, exchange.error()["code"]) == (413, "request_entity_too_large")
    assert "100 bytes" in exchange.error()["message"]


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"messages": ' + b"[" * 50_000])
async def test_a_malformed_body_is_a_400(body: bytes) -> None:
    exchange = await post(application(FakeEngine()), CHAT, body)

    assert (exchange.status, exchange.error()["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/vnd.api+json",
        "text/json",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/octet-stream",
    ],
)
async def test_json_is_taken_from_clients_that_do_not_say_what_they_send(content_type: str) -> None:
    app = application(FakeEngine(answering(END, ended())))

    exchange = await post(app, CHAT, {"messages": MESSAGES}, {"Content-Type": content_type})

    assert exchange.status == 200


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/abort_request", "/generate"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/xml"},
        {"Content-Type": "image/png"},
        {"Content-Type": "text/html"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
async def test_a_body_that_is_surely_no_json_is_a_415(path: str, headers: dict[str, str]) -> None:
    engine = FakeEngine()

    exchange = await post(application(engine), path, {"messages": MESSAGES}, headers)

    assert (415, "unsupported_media_type") == (exchange.status, exchange.error()["code"])
    assert "application/json" == exchange.headers["content-type"]
    assert [] == engine.streams


async def test_the_type_of_no_body_is_of_no_matter() -> None:
    exchange = await Call(application(FakeEngine())).run("GET", "/health", headers={"Content-Type": "text/html"})

    assert 200 == exchange.status


async def test_the_request_id_of_the_client_is_echoed() -> None:
    exchange = await Call(application(FakeEngine())).run("GET", "/health", headers={"X-Request-Id": "mine-1"})

    assert exchange.headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("bad", ["", "x" * 129, "a b", "tab\there"])
async def test_a_request_without_a_sane_id_gets_a_new_one(bad: str) -> None:
    exchange = await Call(application(FakeEngine())).run("GET", "/health", headers={"X-Request-Id": bad})

    assert exchange.headers["x-request-id"] == "feed"
