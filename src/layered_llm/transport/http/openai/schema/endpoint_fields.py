"""The fields that chat and completions do not share, and the whole table of each endpoint.

Must not know: HTTP, the engine, templates.
"""

from typing import Any, Final

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.messages.prompts import MAX_TURNS, Prompt
from layered_llm.domain.sampling import MAX_CHOICES, MAX_LOGPROBS, TOKENS_LIMIT
from layered_llm.transport.http.openai.schema import fields as read
from layered_llm.transport.http.openai.schema.bodies import Field, boolean, integer, string, table_of
from layered_llm.transport.http.openai.schema.body_fields import COMMON
from layered_llm.transport.http.openai.schema.fields import Json
from layered_llm.transport.http.openai.schema.messages import MESSAGES_SCHEMA, parse_messages
from layered_llm.transport.http.openai.schema.unsupported import Neutral, refused_beside

MAX_CHOICES_PER_BODY: Final = MAX_CHOICES
"""Most prompts times `n` of one body."""
_OWN_FIELDS: Final = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "documents", "messages", "tokenize", "tools"}
)
_TOKEN_IDS: Final[Json] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": TOKENS_LIMIT - 1},
    "minItems": 1,
}
_PROMPTS: Final[Json] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_CHOICES_PER_BODY},
        _TOKEN_IDS,
        {"type": "array", "items": _TOKEN_IDS, "minItems": 1, "maxItems": MAX_CHOICES_PER_BODY},
    ]
}


def _prompts(param: str, value: object) -> tuple[Prompt, ...]:
    """The four shapes: a text, texts, token ids, lists of token ids."""
    if isinstance(value, str):
        return (Prompt.of_text(read.text(param, value)),)
    if not isinstance(value, list):
        raise read.wrong_type(param, "a string, or a list of strings, token ids or lists of token ids", value)
    if not value:
        raise ParameterError(param, f"{param} must not be empty")
    match value[0]:
        case str():
            return tuple(map(Prompt.of_text, read.texts(param, value, MAX_CHOICES_PER_BODY)))
        case list():
            read.at_most(param, value, MAX_CHOICES_PER_BODY)
            return tuple(_token_prompt(f"{param}[{place}]", ids) for place, ids in enumerate(value))
        case _:
            return (_token_prompt(param, value),)


def _token_prompt(param: str, ids: object) -> Prompt:
    if not isinstance(ids, list):
        raise read.wrong_type(param, "a list of token ids", ids)
    if not ids:
        raise ParameterError(param, f"{param} must not be empty")
    return Prompt.of_token_ids(read.token_ids(param, ids, TOKENS_LIMIT))


def _template_kwargs(param: str, value: object) -> dict[str, Any]:
    given = read.json_object(param, value)
    for name in given:
        if name in _OWN_FIELDS:
            raise ParameterError(param, f"{param} must not hold {name}, which is a field of its own")
    return dict(given)


def _documents(param: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise read.wrong_type(param, "a list of objects", value)
    read.at_most(param, value, MAX_TURNS)
    for place, document in enumerate(value):
        read.json_object(f"{param}[{place}]", document)
    return value


TEMPLATE: Final = (
    boolean("add_generation_prompt", "The assistant's next turn is begun; true where the last turn is not continued."),
    boolean("continue_final_message", "The output goes on with the last turn. Excludes add_generation_prompt."),
    Field("chat_template_kwargs", {"type": "object"}, _template_kwargs, "What the chat template is given by name."),
    Field(
        "documents",
        {"type": "array", "items": {"type": "object"}, "maxItems": MAX_TURNS},
        _documents,
        "What the chat template is given to cite.",
    ),
)

CHAT: Final = table_of(
    Field("messages", MESSAGES_SCHEMA, parse_messages, "The conversation."),
    string("prompt", "A plain text in place of messages."),
    *COMMON,
    boolean("logprobs", "Log probabilities of the output are told."),
    integer("top_logprobs", 0, MAX_LOGPROBS, "So many of the likeliest tokens are told beside each. Only with logprobs."),
    *TEMPLATE,
)
"""`/v1/chat/completions`."""

COMPLETIONS: Final = table_of(
    Field("prompt", _PROMPTS, _prompts, "One or more texts or lists of token ids."),
    *COMMON,
    integer("logprobs", 0, MAX_LOGPROBS, "Log probabilities are told, with so many of the likeliest tokens beside each."),
)
"""`/v1/completions`."""

REFUSED_IN_CHAT: Final[Neutral] = refused_beside(CHAT)
REFUSED_IN_COMPLETIONS: Final[Neutral] = refused_beside(COMPLETIONS)
