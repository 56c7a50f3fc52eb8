"""The request bodies as JSON Schemas, out of the tables by which the parsers read them.

Must not know: how a body is parsed.

What a schema cannot say (one sum that must not be exceeded, a member that is only allowed with another) is in the descriptions.
Unknown members are ignored. `tests/transport/http/test_http_openapi.py` compares the schemas with what the parsers take.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from layered_llm.transport.http.exchange.json_schema import Json, boolean, described, nullable, one_of, record, string
from layered_llm.transport.http.openai.schema.bodies import Table
from layered_llm.transport.http.openai.schema.endpoint_fields import CHAT, COMPLETIONS, REFUSED_IN_CHAT, REFUSED_IN_COMPLETIONS
from layered_llm.transport.http.operations.requests_by_id import LONGEST_ID_CHARS
from layered_llm.transport.http.sglang.generate_body import GENERATE, REFUSED_IN_GENERATE
from layered_llm.transport.http.vllm.tokenizer_bodies import DETOKENIZE, REFUSED_IN_TOKENIZE, TOKENIZE


def chat_body() -> Json:
    """Of `/v1/chat/completions`."""
    return _body(CHAT, REFUSED_IN_CHAT) | {"oneOf": [_has("messages"), _has("prompt")]}


def completion_body() -> Json:
    """Of `/v1/completions`."""
    return _body(COMPLETIONS, REFUSED_IN_COMPLETIONS, required=("prompt",))


def tokenize_body() -> Json:
    """Of `/tokenize`."""
    return _body(TOKENIZE, REFUSED_IN_TOKENIZE) | {"oneOf": [_has("messages"), _has("prompt")]}


def detokenize_body() -> Json:
    """Of `/detokenize`."""
    return _body(DETOKENIZE, {}, required=("tokens",))


def generate_body() -> Json:
    """Of `/generate`."""
    return _body(GENERATE, REFUSED_IN_GENERATE) | {"oneOf": [_has("text"), _has("input_ids"), _has("prompt")]}


def abort_body() -> Json:
    """Of `/abort_request`."""
    names = ("rid", "id", "request_id")
    named = {name: nullable(string(longest=LONGEST_ID_CHARS)) for name in names}
    return record(**named, abort_all=boolean(), optional=(*names, "abort_all"))


def _body(table: Table, refused: Mapping[str, tuple[Any, ...]], required: Sequence[str] = ()) -> Json:
    members = {
        field.name: described(field.schema if field.name in required else nullable(field.schema), field.summary)
        for field in table.values()
    }
    neutral = {
        name: described(nullable(one_of(*values)), "Not supported: only values that change nothing are taken.")
        for name, values in refused.items()
    }
    body: Json = {"type": "object", "properties": {**members, **neutral}}
    return {**body, "required": list(required)} if required else body


def _has(name: str) -> Json:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}
