"""Strict readers for the fields of a JSON object.

Must not know: which endpoint a field belongs to.

An explicit null counts as absent. Booleans are not numbers, a number of the other kind is not converted, and every text is
valid Unicode, so that nothing behind this file meets a value that it cannot encode. All raise ParameterError.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from layered_llm.domain.errors import ParameterError

JsonObject = Mapping[str, Any]

_TYPE_NAMES: Final = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}

MAX_CONTAINERS: Final = 100_000
MAX_VALUES: Final = 1_000_000
"""Far above any context of any model, a token id being a value; text that is so full of commas does not fit one either."""


class MalformedBody(ValueError):  # noqa: N818 - states what happened
    """The body is no JSON object; the message says where it stops being one."""


def decode_object(body: bytes) -> JsonObject:
    """The JSON object in `body`, where numbers are finite. Raises MalformedBody."""
    _check_values(body)
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    except MalformedBody:
        raise
    except UnicodeDecodeError as error:
        raise MalformedBody(f"The body is not UTF-8: invalid byte at offset {error.start}.") from error
    except RecursionError as error:
        raise MalformedBody("The body is nested too deeply.") from error
    except json.JSONDecodeError as error:
        raise MalformedBody(f"The body is not valid JSON: {error}") from error
    except ValueError as error:  # the interpreter reads no integer of thousands of digits, since that takes quadratic time
        raise MalformedBody("The body holds a number with too many digits.") from error
    if not isinstance(value, dict):
        raise MalformedBody(f"The body must be a JSON object, got {type_name(value)}.")
    return value


def _check_values(body: bytes) -> None:
    """The decoder holds the whole process up, for seconds when a few megabytes are millions of values; counting takes none."""
    opened, separated = body.count(b"[") + body.count(b"{"), body.count(b",")
    if opened > MAX_CONTAINERS:
        raise MalformedBody(f"The body holds {opened} lists and objects, at most {MAX_CONTAINERS} are taken.")
    if separated > MAX_VALUES:
        raise MalformedBody(f"The body holds {separated} values, at most {MAX_VALUES} are taken.")


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedBody(f"The body is not valid JSON: {name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise MalformedBody(f"The body holds a number that is too large: {digits[:32]}")
    return value


def type_name(value: object) -> str:
    """What `value` is, in JSON's words."""
    return "null" if value is None else _TYPE_NAMES.get(type(value), "something else")


def shown(value: object) -> str:
    """`value` as JSON for a message, cut when long: however large or deep it is, no more of it is written than is shown."""
    text = ""
    for piece in json.JSONEncoder().iterencode(value):
        text += piece
        if len(text) > 80:
            return f"{text[:77]}..."
    return text


def wrong_type(param: str, expected: str, value: object) -> ParameterError:
    return ParameterError(param, f"{param} must be {expected}, got {type_name(value)}")


def text(param: str, value: object) -> str:
    """`value` as a string without lone surrogates."""
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ParameterError(param, f"{param} holds a lone surrogate at character {error.start}") from error
    return value


def optional_text(fields: JsonObject, name: str) -> str | None:
    value = fields.get(name)
    return None if value is None else text(name, value)


def optional_bool(fields: JsonObject, name: str) -> bool | None:
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise wrong_type(name, "a boolean", value)


def optional_int(fields: JsonObject, name: str, low: int, high: int) -> int | None:
    """An integer in `low` … `high`, both included."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer", value)
    if not low <= value <= high:
        raise ParameterError(name, f"{name} must be between {low} and {high}, got {shown(value)}")
    return value


def optional_number(fields: JsonObject, name: str) -> float | None:
    """A finite number; its range is the business of whoever uses it."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a number", value)
    try:
        return float(value)
    except OverflowError as error:
        raise ParameterError(name, f"{name} is too large for a number") from error


def optional_object(fields: JsonObject, name: str) -> JsonObject | None:
    value = fields.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise wrong_type(name, "an object", value)


def texts(param: str, values: Sequence[object]) -> tuple[str, ...]:
    return tuple(text(f"{param}[{place}]", value) for place, value in enumerate(values))


def token_ids(param: str, values: Sequence[object], limit: int) -> tuple[int, ...]:
    """Integers in 0 … `limit` - 1."""
    ids = tuple(value for value in values if type(value) is int and 0 <= value < limit)
    if len(ids) == len(values):
        return ids
    place, wrong = next((place, value) for place, value in enumerate(values) if not (type(value) is int and 0 <= value < limit))
    raise ParameterError(param, f"{param}[{place}] must be a token id between 0 and {limit - 1}, got {shown(wrong)}")
