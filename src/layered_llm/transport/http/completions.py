"""`POST /v1/completions`.

Must not know: tokenizers, the engine.
"""

from quart import Response, request

from layered_llm.transport.http.connection import exchange_of
from layered_llm.transport.http.context import HttpContext
from layered_llm.transport.http.openai_generation import generate
from layered_llm.transport.http.openai_schema.requests import parse_completion
from layered_llm.transport.http.openai_schema.responses import COMPLETIONS


async def completions(context: HttpContext) -> Response:
    """Continues one or more plain prompts."""
    exchange = exchange_of(request)
    asked = await exchange.body.parsed(parse_completion, context.fair_work, exchange.account)
    return await generate(context, exchange, asked, COMPLETIONS)
