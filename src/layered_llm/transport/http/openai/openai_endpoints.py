"""OpenAI's endpoints: `POST /v1/chat/completions`, `POST /v1/completions`, `GET /v1/models` and `GET /v1/models/{id}`.

Must not know: routes, templates, tokenizers, how an answer is delivered.
"""

from collections.abc import Callable
from functools import partial

from quart import Response, request

from layered_llm.domain.columns import unpack_i32
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.connection import exchange_of
from layered_llm.transport.http.exchange.context import HttpContext
from layered_llm.transport.http.exchange.public_ids import public_id
from layered_llm.transport.http.exchange.replies import error_reply, json_reply
from layered_llm.transport.http.generation.answer import AnswerPlan, StreamedAnswer, WholeAnswer
from layered_llm.transport.http.generation.generation import Begun, respond_at_once, respond_in_pieces
from layered_llm.transport.http.openai.schema.logprobs import by_id, by_text
from layered_llm.transport.http.openai.schema.requests import GenerationRequest, parse_chat, parse_completion
from layered_llm.transport.http.openai.schema.responses import (
    CHAT,
    COMPLETIONS,
    Json,
    ResponseHead,
    Shape,
    model_list,
    model_object,
)


async def chat_completions(context: HttpContext) -> Response:
    """Continues a conversation; on this route a plain `prompt` is taken too, as mini-sglang takes it."""
    return await _generate(context, parse_chat, CHAT)


async def completions(context: HttpContext) -> Response:
    """Continues one or more plain prompts."""
    return await _generate(context, parse_completion, COMPLETIONS)


async def list_models(context: HttpContext) -> Response:
    return json_reply(model_list([_model(context, name) for name in context.settings.served_model_names]))


async def retrieve_model(context: HttpContext, name: str) -> Response:
    served = context.served_name(name)
    return error_reply(served) if isinstance(served, ApiError) else json_reply(_model(context, served))


def _model(context: HttpContext, name: str) -> Json:
    limits = context.engine.status().limits
    return model_object(name, context.settings.created_s, None if limits is None else limits.context_tokens)


async def _generate(context: HttpContext, parse: Callable[[bytes], GenerationRequest | ApiError], shape: Shape) -> Response:
    exchange = exchange_of(request)
    asked = await exchange.body.parsed(parse, context.fair_work, exchange.account)
    if isinstance(asked, ApiError):
        return error_reply(asked)
    model = context.served_name(asked.model)
    if isinstance(model, ApiError):
        return error_reply(model)
    exchange.id_prefix = shape.id_prefix
    name = asked.request_id or exchange.client_id
    names = () if name is None else (name,) * len(asked.prompts)
    plan = partial(_plan, context, asked, shape, model)
    if asked.stream:
        return await respond_in_pieces(context, exchange, asked, lambda begun: StreamedAnswer(plan(begun)), names=names)
    return await respond_at_once(context, exchange, asked, lambda begun: WholeAnswer(plan(begun)), names=names)


def _plan(context: HttpContext, asked: GenerationRequest, shape: Shape, model: str, begun: Begun) -> AnswerPlan:
    told = asked.told
    return AnswerPlan(
        shape=shape,
        head=ResponseHead(
            id=public_id(shape.id_prefix, begun.streams[0].request, next(iter(begun.names), None)),
            created_s=int(context.wall_clock()),
            model=model,
            fingerprint=context.settings.about.fingerprint,
        ),
        prompts=len(asked.prompts),
        choices_per_prompt=asked.params.n,
        prompt_tokens=sum(verdict.prompt_tokens for verdict in begun.accepted),
        include_usage=asked.include_usage,
        continuous_usage=asked.continuous_usage,
        retry_after_s=context.settings.retry_after_s,
        echoes_logprobs=told.echoes_logprobs,
        tells_prompts=told.has_prompt_field,
        naming=by_id if told.tokens_as_ids else by_text,
        prompt_ids=tuple(unpack_i32(verdict.prompt_ids) for verdict in begun.accepted) if told.token_ids else None,
    )
