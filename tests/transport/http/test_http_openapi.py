import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import jsonschema
import pytest

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.supervision import EnginePhase
from layered_llm.domain.sampling import TOKENS_LIMIT
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.api_keys import ApiKeys
from layered_llm.transport.http.openai.schema.messages import ROLES
from layered_llm.transport.http.openai.schema.requests import parse_chat, parse_completion
from layered_llm.transport.http.openapi.bodies import chat_body, completion_body, detokenize_body, generate_body, tokenize_body
from layered_llm.transport.http.sglang.generate_body import SAMPLING_SCHEMA, parse_generate
from layered_llm.transport.http.vllm.tokenizer_bodies import parse_detokenize, parse_tokenize
from support.http_client import CHAT, COMPLETIONS, MESSAGES, SETTINGS, Call, Exchange, application, get, post
from support.http_engine import READY, FakeEngine, answering, ended, telling, text_delta

JSON = "application/json"
LONG = TOKENS_LIMIT - 1
MANY = 10_000
"""Lists of so many items take the validator seconds."""
CHAT_BASE = {"messages": MESSAGES, "max_tokens": LONG}
COMPLETION_BASE = {"prompt": "x", "max_tokens": LONG}
COMPANIONS: dict[str, dict[str, Any]] = {
    "prompt": {"messages": None},
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
}
"""What some members are only allowed with, which no schema says."""

LISTS = ("rid", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num")
"""Members that may have a value for each prompt."""

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    COMPLETIONS: {"prompt": "x"},
    "/abort_request": {"abort_all": True},
    "/completions": {"prompt": 7},
    "/tokenize": {"prompt": "x", "return_token_strs": True},
    "/v1/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/generate": {"text": ["x"], "return_logprob": True},
    "/chat/completions": {"messages": MESSAGES, "model": "other"},
}
Parse = Callable[[bytes], object]


async def described(keys: ApiKeys | None = None) -> Any:
    return (await get(application(FakeEngine(), keys=keys), "/openapi.json")).json()


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def check_answer(document: Any, path: str, method: str, exchange: Exchange) -> None:
    """Raises unless the document allows this answer."""
    response = document["paths"][path][method.lower()]["responses"][str(exchange.status)]
    schema = response["content"][exchange.headers["content-type"]]["schema"]
    jsonschema.validate(exchange.json(), {**schema, "components": document["components"]})


def given(name: str, *values: object) -> list[dict[str, object]]:
    """The member absent, and with each of these values."""
    return [{}, *({name: value} for value in values)]


def companions(base: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """What a member is only allowed with."""
    if name in LISTS and isinstance(value, list) and value:
        return {"text": ["x"] * len(value)}
    if not base and name in ("max_tokens", "ignore_eos"):
        return {"prompt": "x"}
    if not base:
        return {} if name in ("text", "input_ids", "prompt") else {"text": "x"}
    return COMPANIONS.get(name, {})


def parse_sampling(body: bytes) -> object:
    told = {"return_logprob": True, "logprob_start_len": 0}
    return parse_generate(json.dumps({"text": "x", "sampling_params": json.loads(body), **told}).encode())


def values_around(schema: Any) -> Iterator[Any]:
    """Values of every type, and those at the bounds of `schema` and just beyond them."""
    yield from (
        None,
        True,
        False,
        0,
        1,
        -1,
        0.5,
        -0.5,
        1e9 + 0.5,
        "",
        "x",
        "stop",
        [],
        ["x"],
        [""],
        [0],
        [[0]],
        [[]],
        [1.5],
        {},
    )
    yield from (
        {"x": 1},
        {"7": 1.5},
        {"7": "x"},
        {"7": None},
        [None],
        [True],
        -(1 << 63),
        (1 << 63) - 1,
        1 << 63,
        -1 - (1 << 63),
    )
    for part in (schema, *schema.get("anyOf", ())):
        for bound in ("minimum", "maximum", "exclusiveMinimum"):
            if bound in part:
                yield from (part[bound], part[bound] - 1, part[bound] + 1)
                yield from (part[bound] + step for step in (-1e-3, 1e-3) if abs(part[bound]) < 1e6)
        if "maxLength" in part:
            yield from ("x" * part["maxLength"], "x" * (part["maxLength"] + 1))
        if part.get("maxItems", MANY) < MANY:
            item = 7 if part["items"].get("type") == "integer" else "x"
            yield from ([item] * part["maxItems"], [item] * (part["maxItems"] + 1))
        if "maxProperties" in part:
            yield from ({str(token): 0 for token in range(part["maxProperties"] + more)} for more in (0, 1))
        yield from part.get("enum", ())


async def test_every_route_is_described_and_nothing_else() -> None:
    app = application(FakeEngine())
    routes = {
        (re.sub(r"<(?:path:)?(\w+)>", r"{\1}", rule.rule), method)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }

    told = {(path, method) for path, method, _ in operations(await described())}

    assert told == routes


async def test_the_document_is_sound() -> None:
    document = await described()
    names = [operation["operationId"] for _, _, operation in operations(document)]
    referred = set(re.findall(r'"\$ref":"#/components/schemas/(\w+)"', json.dumps(document, separators=(",", ":"))))
    schemas = [
        media["schema"]
        for _, _, operation in operations(document)
        for part in (operation.get("requestBody", {}), *operation["responses"].values())
        for media in part.get("content", {}).values()
    ]

    assert document["openapi"] == "3.1.0"
    assert len(names) == len(set(names))
    assert referred <= document["components"]["schemas"].keys()
    for schema in (*schemas, *document["components"]["schemas"].values()):
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    ("parse", "base", "body"),
    [
        pytest.param(parse_chat, CHAT_BASE, chat_body(), id="chat"),
        pytest.param(parse_completion, COMPLETION_BASE, completion_body(), id="completions"),
        pytest.param(parse_tokenize, {"messages": MESSAGES}, tokenize_body(), id="tokenize"),
        pytest.param(parse_generate, {}, generate_body(), id="generate"),
        pytest.param(parse_sampling, {"max_new_tokens": LONG}, SAMPLING_SCHEMA, id="sampling_params"),
        pytest.param(parse_detokenize, {"tokens": [1]}, detokenize_body(), id="detokenize"),
    ],
)
def test_a_member_is_taken_exactly_where_its_schema_allows_it(parse: Parse, base: dict[str, Any], body: Any) -> None:
    validator = jsonschema.Draft202012Validator(body)
    differences = []
    for name, schema in body["properties"].items():
        for value in values_around(schema):
            asked = {**base, **companions(base, name, value), name: value}
            is_taken = not isinstance(parse(json.dumps(asked).encode()), ApiError)
            if is_taken != validator.is_valid(asked):
                differences.append((name, value, "taken" if is_taken else "refused"))

    assert differences == []


@pytest.mark.parametrize("role", [*ROLES, "narrator", 7, None])
def test_a_turn_is_taken_exactly_where_its_schema_allows_it(role: object) -> None:
    validator = jsonschema.Draft202012Validator(chat_body())
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    contents = given("content", None, "x", "", 7, [], [{"type": "text", "text": "x"}], [{"type": "image_url"}], [7])
    calls = given("tool_calls", None, [], [call], [{"function": {}}], [7], {})
    others = [*given("name", None, 7), *given("tool_call_id", "a", [])]
    differences = []
    for content, called, other in itertools.product(contents, calls, others):
        body = {"messages": [{"role": role, **content, **called, **other}]}
        is_taken = not isinstance(parse_chat(json.dumps(body).encode()), ApiError)
        if is_taken != validator.is_valid(body):
            differences.append((body, "taken" if is_taken else "refused"))

    assert differences == []


async def test_what_the_endpoints_answer_is_described() -> None:
    document = await described()
    script = answering(text_delta("a", finish_reason=FinishReason.STOP), ended())
    app = application(FakeEngine(script, answerer=telling))
    calls: list[tuple[str, str, Exchange]] = [
        (path, "GET", await get(app, path.replace("{name}", "small")))
        for path, method, _ in operations(document)
        if method == "GET" and path not in ("/metrics", "/docs", "/debug/state")
    ]
    calls += [(path, "POST", await post(app, path, body)) for path, body in BODIES.items()]
    calls.append(("/v1/models/{name}", "GET", await get(app, "/v1/models/other")))

    for path, method, exchange in calls:
        check_answer(document, path, method, exchange)
    assert {200, 400, 404} == {exchange.status for _, _, exchange in calls}


async def test_what_the_endpoints_answer_without_an_engine_is_described() -> None:
    document = await described()
    app = application(FakeEngine(current=attrs.evolve(READY, phase=EnginePhase.STARTING, limits=None)))

    for path in ("/health", "/ready", "/ping", "/v1/models", "/server_info", "/get_model_info"):
        check_answer(document, path, "GET", await get(app, path))
    for path in (CHAT, COMPLETIONS):
        exchange = await post(app, path, BODIES[path])
        check_answer(document, path, "POST", exchange)
        assert 503 == exchange.status


async def test_an_operation_asks_for_a_key_exactly_where_the_server_does() -> None:
    keys = ApiKeys.of([("alice", "sk-alpha")], [("admin:key-1", "sk-admin")])
    app, document = application(FakeEngine(), keys=keys), await described(keys)

    for path, method, operation in operations(document):
        exchange = await Call(app).run(method, path.replace("{name}", "small"), b"{}")
        if "security" not in operation:
            assert exchange.status in (200, 503)
        else:
            check_answer(document, path, method, exchange)
            assert 401 == exchange.status
    needed = {
        operation["operationId"]: operation["security"] for _, _, operation in operations(document) if "security" in operation
    }
    assert [{"key": []}, {"key_header": []}] == needed["chat_completions"]
    assert [{"admin": []}, {"admin_header": []}] == needed["flush_cache"] == needed["debug_state"] == needed["server_info"]
    assert {"key", "key_header", "admin", "admin_header"} == document["components"]["securitySchemes"].keys()
    assert not any("security" in operation for _, _, operation in operations(await described()))


@pytest.mark.parametrize("path", ["/metrics", "/docs", "/openapi.json"])
async def test_the_media_type_is_the_described_one(path: str) -> None:
    exchange = await get(application(FakeEngine()), path)

    assert [exchange.headers["content-type"]] == list((await described())["paths"][path]["get"]["responses"]["200"]["content"])


async def test_the_page_needs_nothing_from_anywhere_else() -> None:
    exchange = await get(application(FakeEngine()), "/docs")

    assert (200, "text/html; charset=utf-8") == (exchange.status, exchange.headers["content-type"])
    assert "default-src 'none'" in exchange.headers["content-security-policy"]
    assert [] == re.findall(rb"(?:https?:)?//[a-z]|src=|<link", exchange.body)


async def test_the_page_has_a_title_for_every_group_and_an_example_for_every_body() -> None:
    page = (await get(application(FakeEngine()), "/docs")).body.decode()
    found = [operation for _, _, operation in operations(await described())]
    bodies = {operation["operationId"].removesuffix("_alias") for operation in found if "requestBody" in operation}

    tags = {tag for operation in found for tag in operation["tags"]}

    assert set() == {name for name in tags | bodies if f" {name}: " not in page}


async def test_the_version_is_the_settings_own() -> None:
    settings = attrs.evolve(SETTINGS, about=attrs.evolve(SETTINGS.about, version="1.2.3"))

    exchange = await Call(application(FakeEngine(), settings=settings)).run("GET", "/openapi.json")

    assert "1.2.3" == exchange.json()["info"]["version"]
