"""The table of all endpoints: their routes and the document that describes them are made from it.

Must not know: how an endpoint answers.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

from layered_llm.transport.http.exchange.api_keys import Access
from layered_llm.transport.http.exchange.json_schema import Json, ref
from layered_llm.transport.http.openai.openai_endpoints import chat_completions, completions, list_models, retrieve_model
from layered_llm.transport.http.openapi.bodies import (
    abort_body,
    chat_body,
    completion_body,
    detokenize_body,
    generate_body,
    tokenize_body,
)
from layered_llm.transport.http.openapi.endpoint import JSON, Endpoint, json_answer
from layered_llm.transport.http.operations.about import model_info, root, server_info, version
from layered_llm.transport.http.operations.metrics import CONTENT_TYPE as METRICS_TYPE
from layered_llm.transport.http.operations.probes import debug, flush_cache, health, metrics
from layered_llm.transport.http.operations.requests_by_id import abort_request, request_fate
from layered_llm.transport.http.sglang.generate import generate
from layered_llm.transport.http.sglang.health_generate import health_generate
from layered_llm.transport.http.vllm.tokenizer import detokenize, tokenize, tokenizer_info

_STREAM: Final = "text/event-stream"
_GENERATION_ERRORS: Final = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_QUESTION_ERRORS: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_REQUEST_ERRORS: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)
_UNHEALTHY: Final[dict[int, Json]] = {HTTPStatus.SERVICE_UNAVAILABLE: ref("Unavailable")}
_POST: Final = ("POST",)


def all_endpoints() -> Sequence[Endpoint]:
    """In the order of the document."""
    return (*_openai(), *_native(), *_about_the_server(), *_orders())


def _openai() -> Iterator[Endpoint]:
    openai = partial(Endpoint, tag="openai", is_aliased=True)
    generation = partial(openai, methods=_POST, errors=_GENERATION_ERRORS)
    yield generation(
        "chat_completions",
        "/chat/completions",
        chat_completions,
        "Continues a conversation.",
        answers=_whole_or_streamed("ChatCompletion"),
        body=chat_body(),
    )
    yield generation(
        "completions",
        "/completions",
        completions,
        "Continues one or more texts.",
        answers=_whole_or_streamed("Completion"),
        body=completion_body(),
    )
    yield openai("models", "/models", list_models, "The names of the model.", answers=json_answer("ModelList"))
    yield openai(
        "model",
        "/models/<path:name>",
        retrieve_model,
        "The model of this name.",
        answers=json_answer("Model"),
        errors=(HTTPStatus.NOT_FOUND,),
    )


def _native() -> Iterator[Endpoint]:
    native = partial(Endpoint, tag="native")
    question = partial(native, errors=_QUESTION_ERRORS)
    yield native(
        "generate",
        "/generate",
        generate,
        "Continues one or more texts or lists of token ids, in SGLang's words.",
        methods=_POST,
        body=generate_body(),
        answers=_whole_or_streamed("Generated"),
        errors=_GENERATION_ERRORS,
    )
    yield question(
        "tokenize",
        "/tokenize",
        tokenize,
        "The tokens of a text or a conversation: those that completions and chat make of it.",
        methods=_POST,
        is_aliased=True,
        body=tokenize_body(),
        answers=json_answer("Tokenized"),
    )
    yield question(
        "detokenize",
        "/detokenize",
        detokenize,
        "The text of tokens.",
        methods=_POST,
        is_aliased=True,
        body=detokenize_body(),
        answers=json_answer("Detokenized"),
    )
    yield question(
        "tokenizer_info",
        "/tokenizer_info",
        tokenizer_info,
        "The model's tokenizer_config.json, with its chat template.",
        answers=json_answer("TokenizerInfo"),
    )


def _about_the_server() -> Iterator[Endpoint]:
    server = partial(Endpoint, tag="server")
    opened = partial(server, access=Access.OPEN)
    summary = "What this is, and where the rest is found."
    yield opened("root", "/", root, summary, answers=json_answer("Root"))
    for name in ("health", "ready", "ping"):
        summary, answers = "Whether requests are taken.", json_answer("Health")
        yield opened(name, f"/{name}", health, summary, answers=answers, bodies=_UNHEALTHY)
    yield server(
        "health_generate",
        "/health_generate",
        health_generate,
        "Whether a token comes within 20 s: waits its turn and is computed.",
        answers=json_answer("Health"),
        errors=_GENERATION_ERRORS[1:],
    )
    yield server("version", "/version", version, "The server's version.", answers=json_answer("Version"))
    for name in ("server_info", "get_server_info"):
        summary, answers = "Settings, limits, and where the scheduler stands.", json_answer("ServerInfo")
        yield server(name, f"/{name}", server_info, summary, answers=answers, access=Access.ADMIN)
    for name in ("model_info", "get_model_info"):
        yield server(name, f"/{name}", model_info, "What model is served.", answers=json_answer("ModelInfo"))
    yield opened("metrics", "/metrics", metrics, "Figures for Prometheus.", answers={METRICS_TYPE: {"type": "string"}})
    yield server(
        "debug_state",
        "/debug/state",
        debug,
        "What every process holds, and whether nothing is left of any request.",
        answers=json_answer("State"),
        access=Access.ADMIN,
        errors=(HTTPStatus.SERVICE_UNAVAILABLE,),
    )


def _orders() -> Iterator[Endpoint]:
    order = partial(Endpoint, tag="orders")
    yield order(
        "flush_cache",
        "/flush_cache",
        flush_cache,
        "Frees every page that only the prefix cache holds.",
        methods=_POST,
        access=Access.ADMIN,
        answers=json_answer("Pages"),
        errors=(HTTPStatus.SERVICE_UNAVAILABLE,),
    )
    yield order(
        "request",
        "/requests/<path:name>",
        request_fate,
        "Whether a request of your own is open, or how it ended.",
        answers=json_answer("RequestFate"),
        errors=_REQUEST_ERRORS,
    )
    yield order(
        "abort_request",
        "/abort_request",
        abort_request,
        "Ends the request with this id if it is your own, or, for the admin, with abort_all every one.",
        methods=_POST,
        body=abort_body(),
        answers=json_answer("Aborted"),
        errors=_REQUEST_ERRORS,
    )


def _whole_or_streamed(component: str) -> dict[str, Json]:
    return {JSON: ref(component), _STREAM: ref("Event")}
