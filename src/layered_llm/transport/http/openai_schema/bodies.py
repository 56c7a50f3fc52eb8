"""A body as a table of fields: by it bodies are read, and documentation and tests can be made.

Must not know: which endpoints there are, what a field means to the engine.

A field's JSON Schema describes what its reader takes where it stands alone; what it may not be beside other fields is the
business of whoever reads the whole body. Every field may be null, which means that it is absent.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.transport.http.api_error import ApiError, bad_parameter, bad_request
from layered_llm.transport.http.openai_schema import fields as read
from layered_llm.transport.http.openai_schema.fields import Json, JsonObject
from layered_llm.transport.http.openai_schema.unsupported import NOTHING, Neutral, refuse

RequestT = TypeVar("RequestT")

Reader: TypeAlias = Callable[[str, Any], Any]
"""(name, a value that is not null) to the value as the domain has it. Raises ParameterError."""


logger = logging.getLogger(__name__)


@attrs.frozen
class Field:
    """One field of a body."""

    name: str
    schema: Json
    """JSON Schema of the value, where it is not null."""
    read: Reader
    summary: str


Fields: TypeAlias = Sequence[Field]
"""Of one body, or of an object in it."""


def names_of(table: Fields) -> Sequence[str]:
    return [field.name for field in table]


def read_all(table: Fields, body: JsonObject) -> dict[str, Any]:
    """The fields of `table` that are present in `body`, as their readers have them. Raises ParameterError."""
    present = {name for name, value in body.items() if value is not None}
    return {field.name: field.read(field.name, body[field.name]) for field in table if field.name in present}


def checked(
    body: bytes,
    build: Callable[[JsonObject, JsonObject], RequestT],
    table: Fields,
    refused: Neutral = NOTHING,
    ways: Iterable[str] | None = None,
) -> RequestT | ApiError:
    """What `build` makes of the fields of the JSON object in `body`, as `table` reads them and as they are, or why it does not.

    Of the fields that the table has not, those in `refused` are an error, which names one of `ways`, or of the table, instead.
    """
    try:
        fields = read.decode_object(body)
        if logger.isEnabledFor(logging.DEBUG):
            _log_ignored(fields, table)
        refuse(fields, refused, (field.name for field in table) if ways is None else ways)
        return build(read_all(table, fields), fields)
    except read.MalformedBody as error:
        return bad_request(str(error), code="invalid_json")
    except ParameterError as error:
        return bad_parameter(error)


def _log_ignored(fields: JsonObject, table: Fields) -> None:
    ignored = sorted(fields.keys() - names_of(table))
    if ignored:
        logger.debug("fields without effect: %s", ignored)


def integer(name: str, low: int, high: int, summary: str) -> Field:
    """Both ends belong to the range."""
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Field(name, schema, lambda param, value: read.integer(param, value, low, high), summary)


def number(name: str, low: float, high: float, summary: str, *, above_low: bool = False) -> Field:
    """Both ends belong to the range, but for the lower one where the value has to be `above_low`."""
    schema = {"type": "number", "exclusiveMinimum" if above_low else "minimum": low, "maximum": high}
    return Field(name, schema, lambda param, value: read.number(param, value, low, high, above_low=above_low), summary)


def boolean(name: str, summary: str) -> Field:
    return Field(name, {"type": "boolean"}, read.boolean, summary)


def string(name: str, summary: str) -> Field:
    return Field(name, {"type": "string"}, read.text, summary)


def bounded_string(name: str, low: int, high: int, summary: str) -> Field:
    """Of `low` … `high` characters, both included."""
    schema = {"type": "string", "minLength": low, "maxLength": high}
    return Field(name, schema, lambda param, value: read.bounded_text(param, value, low, high), summary)
