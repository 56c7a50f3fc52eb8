"""`POST /generate`, as SGLang has it; mini-sglang's body is taken too.

Must not know: JSON names, the engine.
"""

from quart import Response, request

from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.connection import exchange_of
from layered_llm.transport.http.exchange.context import HttpContext
from layered_llm.transport.http.exchange.public_ids import NATIVE_PREFIX, public_id
from layered_llm.transport.http.exchange.replies import error_reply
from layered_llm.transport.http.generation.generation import Begun, respond_at_once, respond_in_pieces
from layered_llm.transport.http.sglang.generate_answer import NativeAnswer, NativePlan
from layered_llm.transport.http.sglang.generate_body import NativeRequest, parse_generate


async def generate(context: HttpContext) -> Response:
    """Continues one or more texts or lists of token ids."""
    exchange = exchange_of(request)
    asked = await exchange.body.parsed(parse_generate, context.fair_work, exchange.account)
    if isinstance(asked, ApiError):
        return error_reply(asked)

    def answer(begun: Begun) -> NativeAnswer:
        return NativeAnswer(_plan(context, asked, begun))

    respond = respond_in_pieces if asked.stream else respond_at_once
    return await respond(context, exchange, asked, answer, is_one_body=False, names=asked.rids)


def _plan(context: HttpContext, asked: NativeRequest, begun: Begun) -> NativePlan:
    return NativePlan(
        ids=begun.names or [public_id(NATIVE_PREFIX, stream.request) for stream in begun.streams],
        prompt_tokens=[verdict.prompt_tokens for verdict in begun.accepted],
        choices_per_prompt=asked.choices_per_prompt,
        is_batch=asked.is_batch,
        logprobs=asked.logprobs,
        retry_after_s=context.settings.retry_after_s,
    )
