"""A body as a table of fields: by it bodies are read, and documentation and tests can be made.

Must not know: which endpoints there are, what a field means to the engine.

A field's JSON Schema describes what its reader takes where it stands alone; what it may not be beside other fields is the
business of whoever reads the whole body. Every field may be null, which means that it is absent.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.transport.http.exchange.api_error import ApiError, bad_parameter, bad_request
from layered_llm.transport.http.openai.schema import fields as read
from layered_llm.transport.http.openai.schema.fields import Json, JsonObject
from layered_llm.transport.http.openai.schema.unsupported import NOTHING, Neutral, refuse

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


Table: TypeAlias = Mapping[str, Field]
"""The fields of one body, or of an object in it, by their names."""


def table_of(*fields: Field) -> Table:
    return {field.name: field for field in fields}


def read_all(table: Table, body: JsonObject) -> dict[str, Any]:
    """The fields of `table` that are present in `body`, as their readers have them. Raises ParameterError."""
    return {name: table[name].read(name, value) for name, value in body.items() if value is not None and name in table}


def checked(
    body: bytes,
    build: Callable[[JsonObject, JsonObject], RequestT],
    table: Table,
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
        refuse(fields, refused, table if ways is None else ways)
        return build(read_all(table, fields), fields)
    except read.MalformedBody as error:
        return bad_request(str(error), code="invalid_json")
    except ParameterError as error:
        return bad_parameter(error)


def _log_ignored(fields: JsonObject, table: Table) -> None:
    ignored = sorted(fields.keys() - table.keys())
    if ignored:
        logger.debug("fields without effect: %s", ignored)


def integer(name: str, low: int, high: int, summary: str) -> Field:
    """Both ends belong to the range."""
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Field(name, schema, partial(read.integer, low=low, high=high), summary)


def number(name: str, low: float, high: float, summary: str, *, above_low: bool = False) -> Field:
    """Both ends belong to the range, but for the lower one where the value has to be `above_low`."""
    schema = {"type": "number", "exclusiveMinimum" if above_low else "minimum": low, "maximum": high}
    return Field(name, schema, partial(read.number, low=low, high=high, above_low=above_low), summary)


def boolean(name: str, summary: str) -> Field:
    return Field(name, {"type": "boolean"}, read.boolean, summary)


def string(name: str, summary: str) -> Field:
    return Field(name, {"type": "string"}, read.text, summary)


def bounded_string(name: str, low: int, high: int, summary: str) -> Field:
    """Of `low` … `high` characters, both included."""
    schema = {"type": "string", "minLength": low, "maxLength": high}
    return Field(name, schema, partial(read.bounded_text, low=low, high=high), summary)
