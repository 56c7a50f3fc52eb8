"""`/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them.

Must not know: JSON names of a request, tokenizers.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from quart import Response, request

from layered_llm.domain.columns import rows, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import (
    DescribeTokenizer,
    Detokenize,
    Detokenized,
    Rejected,
    TextAnswer,
    TextQuestion,
    Tokenize,
    Tokenized,
    TokenizerDescribed,
)
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.transport.http.exchange import api_error, sse
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.connection import Exchange, exchange_of
from layered_llm.transport.http.exchange.context import HttpContext
from layered_llm.transport.http.exchange.replies import JSON_TYPE, error_reply, json_reply
from layered_llm.transport.http.vllm.tokenizer_bodies import parse_detokenize, parse_tokenize

MOST_TOKENS_AT_ONCE: Final = 4096
"""Some 2 ms of encoding, ids and spellings together."""


async def tokenize(context: HttpContext) -> Response:
    """The tokens of a text or a conversation: those that completions and chat make of it."""
    exchange = exchange_of(request)
    asked = await exchange.body.parsed(parse_tokenize, context.fair_work, exchange.account)
    if isinstance(asked, ApiError):
        return error_reply(asked)
    prompt, with_spellings, tenant = asked.prompt, asked.with_spellings, exchange.holder.tenant

    def question(request_id: RequestId) -> Tokenize:
        return Tokenize(request=request_id, prompt=prompt, with_spellings=with_spellings, tenant=tenant)

    answer = await _answer(context, exchange, question, asked.model)
    match answer:
        case ApiError():
            return error_reply(answer)
        case Tokenized():
            return Response(await _written(context, exchange.account, answer), content_type=JSON_TYPE)
        case _:
            raise InvariantViolated(f"a Tokenize is answered with {type(answer).__name__}")


async def detokenize(context: HttpContext) -> Response:
    """The text of tokens."""
    exchange = exchange_of(request)
    asked = await exchange.body.parsed(parse_detokenize, context.fair_work, exchange.account)
    if isinstance(asked, ApiError):
        return error_reply(asked)
    token_ids, skips, tenant = asked.token_ids, asked.skip_special_tokens, exchange.holder.tenant

    def question(request_id: RequestId) -> Detokenize:
        return Detokenize(request=request_id, token_ids=token_ids, skip_special_tokens=skips, tenant=tenant)

    answer = await _answer(context, exchange, question, asked.model)
    match answer:
        case ApiError():
            return error_reply(answer)
        case Detokenized(text=text):
            return json_reply({"prompt": text})
        case _:
            raise InvariantViolated(f"a Detokenize is answered with {type(answer).__name__}")


async def tokenizer_info(context: HttpContext) -> Response:
    """The checkpoint's tokenizer_config.json, with its chat template."""
    exchange = exchange_of(request)
    tenant = exchange.holder.tenant
    answer = await _answer(context, exchange, lambda request_id: DescribeTokenizer(request=request_id, tenant=tenant), None)
    match answer:
        case ApiError():
            return error_reply(answer)
        case TokenizerDescribed(config=config):
            return Response(config, content_type=JSON_TYPE)
        case _:
            raise InvariantViolated(f"a DescribeTokenizer is answered with {type(answer).__name__}")


async def _written(context: HttpContext, account: str, answer: Tokenized) -> bytes:
    """The body, of many tokens in a thread and piece by piece: the encoder lets nobody in between."""
    limits = context.engine.status().limits
    context_tokens = None if limits is None else limits.context_tokens
    if rows("i", answer.token_ids) <= MOST_TOKENS_AT_ONCE:
        return _tokenized(context_tokens, answer)
    async with context.fair_work.turn(account, len(answer.token_ids)):
        return await context.fair_work.in_thread(partial(_tokenized, context_tokens, answer))


def _tokenized(context_tokens: int | None, answer: Tokenized) -> bytes:
    tokens, spellings = unpack_i32(answer.token_ids).tolist(), answer.spellings
    return sse.to_json_in_pieces(
        {
            "count": len(tokens),
            "max_model_len": context_tokens,
            "tokens": tokens,
            "token_strs": None if spellings is None else list(spellings),
        }
    )


async def _answer(
    context: HttpContext, exchange: Exchange, question: Callable[[RequestId], TextQuestion], model: str | None
) -> TextAnswer | ApiError:
    """What a text worker answers; the question lives no longer than the exchange."""
    name = context.served_name(model)
    refused = name if isinstance(name, ApiError) else context.unavailable()
    if refused is not None:
        return refused
    context.drain.hold(exchange.owner)
    asked = context.engine.ask(exchange.owner, question, exchange.holder.tenant)
    if isinstance(asked, Rejected):
        return api_error.rejection(asked, context.settings.retry_after_s)
    try:
        with context.drain.bounded():
            answer = await asked.answer()
            return api_error.rejection(answer, context.settings.retry_after_s) if isinstance(answer, Rejected) else answer
    except EngineLost as why:
        return context.lost(why)
    asked.close(AbortReason.SHUTDOWN)
    return context.shutting_down()
