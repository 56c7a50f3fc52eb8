"""The table of all endpoints: their routes and the document that describes them are made from it.

Must not know: how an endpoint answers.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from layered_llm.transport.http.about import model_info, root, server_info, version
from layered_llm.transport.http.api_keys import Access
from layered_llm.transport.http.json_schema import Json, ref
from layered_llm.transport.http.metrics import CONTENT_TYPE as METRICS_TYPE
from layered_llm.transport.http.native.generate import generate
from layered_llm.transport.http.native.health_generate import health_generate
from layered_llm.transport.http.native.tokenizer import detokenize, tokenize, tokenizer_info
from layered_llm.transport.http.openai_endpoints import chat_completions, completions, list_models, retrieve_model
from layered_llm.transport.http.openapi.bodies import (
    abort_body,
    chat_body,
    completion_body,
    detokenize_body,
    generate_body,
    tokenize_body,
)
from layered_llm.transport.http.openapi.endpoint import JSON, Endpoint, json_answer
from layered_llm.transport.http.probes import debug, flush_cache, health, metrics
from layered_llm.transport.http.requests_by_id import abort_request, request_fate

_STREAM: Final = "text/event-stream"
_GENERATION_ERRORS: Final = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_QUESTION_ERRORS: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_HEALTH: Final = json_answer("Health")
_UNHEALTHY: Final[dict[int, Json]] = {HTTPStatus.SERVICE_UNAVAILABLE: ref("Unavailable")}


def all_endpoints() -> Sequence[Endpoint]:
    """In the order of the document."""
    return (*_openai(), *_native(), *_about_the_server(), *_orders())


def _openai() -> Sequence[Endpoint]:
    return (
        Endpoint(
            name="chat_completions",
            path="/chat/completions",
            handler=chat_completions,
            methods=("POST",),
            summary="Continues a conversation.",
            tag="openai",
            is_aliased=True,
            body=chat_body(),
            answers=_whole_or_streamed("ChatCompletion"),
            errors=_GENERATION_ERRORS,
        ),
        Endpoint(
            name="completions",
            path="/completions",
            handler=completions,
            methods=("POST",),
            summary="Continues one or more texts.",
            tag="openai",
            is_aliased=True,
            body=completion_body(),
            answers=_whole_or_streamed("Completion"),
            errors=_GENERATION_ERRORS,
        ),
        Endpoint(
            name="models",
            path="/models",
            handler=list_models,
            summary="The names of the model.",
            tag="openai",
            is_aliased=True,
            answers=json_answer("ModelList"),
        ),
        Endpoint(
            name="model",
            path="/models/<path:name>",
            handler=retrieve_model,
            summary="The model of this name.",
            tag="openai",
            is_aliased=True,
            answers=json_answer("Model"),
            errors=(HTTPStatus.NOT_FOUND,),
        ),
    )


def _native() -> Sequence[Endpoint]:
    return (
        Endpoint(
            name="generate",
            path="/generate",
            handler=generate,
            methods=("POST",),
            summary="Continues one or more texts or lists of token ids, in SGLang's words.",
            tag="native",
            body=generate_body(),
            answers=_whole_or_streamed("Generated"),
            errors=_GENERATION_ERRORS,
        ),
        Endpoint(
            name="tokenize",
            path="/tokenize",
            handler=tokenize,
            methods=("POST",),
            summary="The tokens of a text or a conversation: those that completions and chat make of it.",
            tag="native",
            is_aliased=True,
            body=tokenize_body(),
            answers=json_answer("Tokenized"),
            errors=_QUESTION_ERRORS,
        ),
        Endpoint(
            name="detokenize",
            path="/detokenize",
            handler=detokenize,
            methods=("POST",),
            summary="The text of tokens.",
            tag="native",
            is_aliased=True,
            body=detokenize_body(),
            answers=json_answer("Detokenized"),
            errors=_QUESTION_ERRORS,
        ),
        Endpoint(
            name="tokenizer_info",
            path="/tokenizer_info",
            handler=tokenizer_info,
            summary="The model's tokenizer_config.json, with its chat template.",
            tag="native",
            answers=json_answer("TokenizerInfo"),
            errors=_QUESTION_ERRORS,
        ),
    )


def _about_the_server() -> Sequence[Endpoint]:
    return (
        Endpoint(
            name="root",
            path="/",
            handler=root,
            summary="What this is, and where the rest is found.",
            tag="server",
            answers=json_answer("Root"),
            access=Access.OPEN,
        ),
        *(
            Endpoint(
                name=path.removeprefix("/"),
                path=path,
                handler=health,
                summary="Whether requests are taken.",
                tag="server",
                answers=_HEALTH,
                bodies=_UNHEALTHY,
                access=Access.OPEN,
            )
            for path in ("/health", "/ready", "/ping")
        ),
        Endpoint(
            name="health_generate",
            path="/health_generate",
            handler=health_generate,
            summary="Whether a token comes within 20 s: waits its turn and is computed.",
            tag="server",
            answers=json_answer("Health"),
            errors=_GENERATION_ERRORS[1:],
        ),
        Endpoint(
            name="version",
            path="/version",
            handler=version,
            summary="The server's version.",
            tag="server",
            answers=json_answer("Version"),
        ),
        *(
            Endpoint(
                name=path.removeprefix("/"),
                path=path,
                handler=server_info,
                summary="Settings, limits, and where the scheduler stands.",
                tag="server",
                answers=json_answer("ServerInfo"),
                access=Access.ADMIN,
            )
            for path in ("/server_info", "/get_server_info")
        ),
        *(
            Endpoint(
                name=path.removeprefix("/"),
                path=path,
                handler=model_info,
                summary="What model is served.",
                tag="server",
                answers=json_answer("ModelInfo"),
            )
            for path in ("/model_info", "/get_model_info")
        ),
        Endpoint(
            name="metrics",
            path="/metrics",
            handler=metrics,
            summary="Figures for Prometheus.",
            tag="server",
            answers={METRICS_TYPE: {"type": "string"}},
            access=Access.OPEN,
        ),
        Endpoint(
            name="debug_state",
            path="/debug/state",
            handler=debug,
            summary="What every process holds, and whether nothing is left of any request.",
            tag="server",
            answers=json_answer("State"),
            access=Access.ADMIN,
            errors=(HTTPStatus.SERVICE_UNAVAILABLE,),
        ),
    )


def _orders() -> Sequence[Endpoint]:
    return (
        Endpoint(
            name="flush_cache",
            path="/flush_cache",
            handler=flush_cache,
            methods=("POST",),
            access=Access.ADMIN,
            summary="Frees every page that only the prefix cache holds.",
            tag="orders",
            answers=json_answer("Pages"),
            errors=(HTTPStatus.SERVICE_UNAVAILABLE,),
        ),
        Endpoint(
            name="request",
            path="/requests/<path:name>",
            handler=request_fate,
            summary="Whether a request of your own is open, or how it ended.",
            tag="orders",
            answers=json_answer("RequestFate"),
            errors=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
        ),
        Endpoint(
            name="abort_request",
            path="/abort_request",
            handler=abort_request,
            methods=("POST",),
            summary="Ends the request with this id if it is your own, or, for the admin, with abort_all every one.",
            tag="orders",
            body=abort_body(),
            answers=json_answer("Aborted"),
            errors=(HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE),
        ),
    )


def _whole_or_streamed(component: str) -> dict[str, Json]:
    return {JSON: ref(component), _STREAM: ref("Event")}
