"""The bodies of `/tokenize` and `/detokenize`, which are vLLM's.

Must not know: HTTP, tokenizers.
"""

from typing import Final

import attrs

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.errors import ParameterError
from layered_llm.domain.messages.api_text import MAX_TOLD_TOKENS
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.sampling import TOKENS_LIMIT
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.openai.schema import fields as read
from layered_llm.transport.http.openai.schema.bodies import Field, boolean, checked, string, table_of
from layered_llm.transport.http.openai.schema.body_fields import MODEL
from layered_llm.transport.http.openai.schema.endpoint_fields import TEMPLATE
from layered_llm.transport.http.openai.schema.messages import MESSAGES_SCHEMA, parse_messages
from layered_llm.transport.http.openai.schema.requests import chat_prompt
from layered_llm.transport.http.openai.schema.unsupported import Neutral, refused_beside


def _token_ids(param: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise read.wrong_type(param, "a list of token ids", value)
    if len(value) > MAX_TOLD_TOKENS:
        raise ParameterError(param, f"{param} holds {len(value)} token ids, at most {MAX_TOLD_TOKENS} are taken")
    return read.token_ids(param, value, TOKENS_LIMIT)


TOKENIZE: Final = table_of(
    Field("messages", MESSAGES_SCHEMA, parse_messages, "A conversation."),
    string("prompt", "A text in place of messages."),
    boolean("add_special_tokens", "The tokenizer's own tokens are put around the prompt: to a text, not to a conversation."),
    *TEMPLATE,
    boolean("return_token_strs", "The spelling of each token is told."),
    MODEL,
)

REFUSED_IN_TOKENIZE: Final[Neutral] = refused_beside(TOKENIZE, only_prompt=True)

DETOKENIZE: Final = table_of(
    Field(
        "tokens",
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": TOKENS_LIMIT - 1}, "maxItems": MAX_TOLD_TOKENS},
        _token_ids,
        "Ids, in their order.",
    ),
    boolean("skip_special_tokens", "Special tokens have no text; false where absent."),
    MODEL,
)


@attrs.frozen(kw_only=True)
class TokenizeRequest:
    """A body of `/tokenize`."""

    prompt: Prompt
    with_spellings: bool
    model: str | None


@attrs.frozen(kw_only=True)
class DetokenizeRequest:
    """A body of `/detokenize`."""

    token_ids: bytes
    skip_special_tokens: bool
    model: str | None


def parse_tokenize(body: bytes) -> TokenizeRequest | ApiError:
    """The request in `body`, or why it is none."""
    return checked(body, _tokenize, TOKENIZE, REFUSED_IN_TOKENIZE)


def parse_detokenize(body: bytes) -> DetokenizeRequest | ApiError:
    """The request in `body`, or why it is none."""
    return checked(body, _detokenize, DETOKENIZE)


def _tokenize(given: read.JsonObject, _written: read.JsonObject) -> TokenizeRequest:
    if "prompt" not in given and "messages" not in given:
        raise ParameterError("prompt", "prompt is required, or messages for a conversation")
    return TokenizeRequest(
        prompt=chat_prompt(given), with_spellings=given.get("return_token_strs", False), model=given.get("model")
    )


def _detokenize(given: read.JsonObject, _written: read.JsonObject) -> DetokenizeRequest:
    if "tokens" not in given:
        raise ParameterError("tokens", "tokens is required")
    return DetokenizeRequest(
        token_ids=pack_i32(given["tokens"]),
        skip_special_tokens=given.get("skip_special_tokens", False),
        model=given.get("model"),
    )
