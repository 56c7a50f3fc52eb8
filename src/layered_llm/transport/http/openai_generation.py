"""The answers of `/v1/chat/completions` and `/v1/completions`: one way for both, but for their shapes.

Must not know: routes, how an answer is delivered.
"""

from functools import partial

from quart import Response

from layered_llm.domain.columns import unpack_i32
from layered_llm.transport.http.answer import AnswerPlan, StreamedAnswer, WholeAnswer
from layered_llm.transport.http.api_error import ApiError
from layered_llm.transport.http.connection import Exchange
from layered_llm.transport.http.context import HttpContext
from layered_llm.transport.http.generation import Begun, Wording, respond
from layered_llm.transport.http.openai_schema.logprobs import by_id, by_text
from layered_llm.transport.http.openai_schema.requests import GenerationRequest
from layered_llm.transport.http.openai_schema.responses import ResponseHead, Shape
from layered_llm.transport.http.public_ids import public_id
from layered_llm.transport.http.replies import error_reply


async def generate(context: HttpContext, exchange: Exchange, request: GenerationRequest | ApiError, shape: Shape) -> Response:
    """The response to `request`; all that it opens belongs to `exchange`."""
    if isinstance(request, ApiError):
        return error_reply(request)
    model = context.served_name(request.model)
    if isinstance(model, ApiError):
        return error_reply(model)
    plan = partial(_plan, context, request, shape, model)
    wording = Wording(
        stream=lambda begun: StreamedAnswer(plan(begun)),
        whole=lambda begun: WholeAnswer(plan(begun)),
    )
    exchange.id_prefix = shape.id_prefix
    name = request.request_id or exchange.client_id
    names = () if name is None else (name,) * len(request.prompts)
    return await respond(context, exchange, request, wording, names=names)


def _plan(context: HttpContext, request: GenerationRequest, shape: Shape, model: str, begun: Begun) -> AnswerPlan:
    told = request.told
    return AnswerPlan(
        shape=shape,
        head=ResponseHead(
            id=public_id(shape.id_prefix, begun.streams[0].request, next(iter(begun.names), None)),
            created_s=int(context.wall_clock()),
            model=model,
            fingerprint=context.settings.about.fingerprint,
        ),
        prompts=len(request.prompts),
        choices_per_prompt=request.params.n,
        prompt_tokens=sum(verdict.prompt_tokens for verdict in begun.accepted),
        include_usage=request.include_usage,
        continuous_usage=request.continuous_usage,
        retry_after_s=context.settings.retry_after_s,
        echoes_logprobs=told.echoes_logprobs,
        tells_prompts=told.has_prompt_field,
        naming=by_id if told.tokens_as_ids else by_text,
        prompt_ids=tuple(unpack_i32(verdict.prompt_ids) for verdict in begun.accepted) if told.token_ids else None,
    )
