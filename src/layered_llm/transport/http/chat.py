"""`POST /v1/chat/completions`.

Must not know: templates, the engine.
"""

from quart import Response, request

from layered_llm.transport.http.connection import exchange_of
from layered_llm.transport.http.context import HttpContext
from layered_llm.transport.http.openai_generation import generate
from layered_llm.transport.http.openai_schema.requests import parse_chat
from layered_llm.transport.http.openai_schema.responses import CHAT


async def chat_completions(context: HttpContext) -> Response:
    """Continues a conversation; on this route a plain `prompt` is taken too, as mini-sglang takes it."""
    exchange = exchange_of(request)
    asked = await exchange.body.parsed(parse_chat, context.fair_work, exchange.account)
    return await generate(context, exchange, asked, CHAT)
