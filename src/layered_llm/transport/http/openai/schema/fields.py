"""Strict readers for the fields of a JSON object.

Must not know: which endpoint a field belongs to.

An explicit null counts as absent. Booleans are not numbers, a number of the other kind is not converted, and every text is
valid Unicode, so that nothing behind this file meets a value that it cannot encode. All raise ParameterError.
"""

import json
import math
from collections.abc import Mapping, Sequence, Sized
from typing import Any, Final, NoReturn

import attrs

from layered_llm.domain.errors import ParameterError

JsonObject = Mapping[str, Any]
Json = dict[str, Any]

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

MAX_MEMBERS: Final = 250_000
"""More than two for each container; a name that was not there before takes the decoder ten times as long as a number."""

LONG_DIGITS: Final = 400
"""More than the largest finite number has; reading them takes time in the square of their number."""
MAX_LONG_INTEGERS: Final = 100
_BYTE_ORDER_MARK: Final = "\ufeff"
_TOKEN_ID_CHARS: Final = 12
"""With the comma behind it."""

MAX_JSON_TEXT_CHARS: Final = 1 << 20
"""Of what a template is given as an object; the text worker decodes it while its streams wait."""


class MalformedBody(ValueError):  # noqa: N818 - states what happened
    """The body is no JSON object; the message says where it stops being one."""


def decode_object(body: bytes) -> JsonObject:
    """The JSON object in `body`, where numbers are finite. Raises MalformedBody."""
    _check_values("The body", body)
    try:
        value = _loads(body.decode("utf-8"))
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


def decode_text(param: str, text: str) -> object:
    """The JSON value that a string of the body holds. Raises ParameterError."""
    try:
        # In the body its brackets and commas may have been written as escapes, which were not counted there.
        _check_values(param, text.encode())
    except MalformedBody as error:
        raise ParameterError(param, str(error)) from error
    try:
        return _loads(text)
    except (ValueError, RecursionError) as error:  # MalformedBody too, and the interpreter's limit of digits
        raise ParameterError(param, f"{param} must be a JSON object as a string") from error


def encode_text(param: str, value: object) -> str:
    """A part of the body as a JSON text. Raises ParameterError."""
    try:
        text = json.dumps(value)
    except RecursionError as error:  # what the decoder just took may be too deep for the encoder
        raise ParameterError(param, f"{param} is nested too deeply") from error
    if len(text) > MAX_JSON_TEXT_CHARS:
        message = f"{param} has {len(text)} characters as JSON, at most {MAX_JSON_TEXT_CHARS} are taken"
        raise ParameterError(param, message)
    return text


def _check_values(whole: str, encoded: bytes) -> None:
    """The decoder holds the whole process up, for seconds when a few megabytes are millions of values; counting takes none."""
    opened, separated = encoded.count(b"[") + encoded.count(b"{"), encoded.count(b",")
    if opened > MAX_CONTAINERS:
        raise MalformedBody(f"{whole} holds {opened} lists and objects, at most {MAX_CONTAINERS} are taken.")
    if separated > MAX_VALUES:
        raise MalformedBody(f"{whole} holds {separated} values, at most {MAX_VALUES} are taken.")
    if opened + separated > MAX_MEMBERS and (named := encoded.count(b":")) > MAX_MEMBERS:
        raise MalformedBody(f"{whole} holds {named} named members, at most {MAX_MEMBERS} are taken.")


def _loads(text: str) -> Any:
    if len(text) <= LONG_DIGITS * MAX_LONG_INTEGERS and not text.startswith(_BYTE_ORDER_MARK):
        return _SHORT_TEXTS.decode(text)
    # Token ids are read by the decoder itself; longer values are so few that the digits of each can be counted.
    parse_int = _Integers() if len(text) > _TOKEN_ID_CHARS * text.count(",") else None
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=parse_int)


@attrs.define
class _Integers:
    """Reads the integers of one body."""

    _long_left: int = attrs.field(init=False, default=MAX_LONG_INTEGERS)

    def __call__(self, digits: str) -> int:
        if len(digits) > LONG_DIGITS:
            self._long_left -= 1
            if self._long_left < 0:
                message = f"The body holds more than {MAX_LONG_INTEGERS} numbers of over {LONG_DIGITS} digits."
                raise MalformedBody(message)
        return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedBody(f"The body is not valid JSON: {name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise MalformedBody(f"The body holds a number that is too large: {digits[:32]}")
    return value


_SHORT_TEXTS: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
"""Has no state, and reads what has no room for too many long integers."""


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


def bounded_text(param: str, value: object, low: int, high: int) -> str:
    """The same of `low` … `high` characters, both included."""
    read = text(param, value)
    if not low <= len(read) <= high:
        raise ParameterError(param, f"{param} must have {low} to {high} characters, got {len(read)}")
    return read


def boolean(param: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong_type(param, "a boolean", value)


def integer(param: str, value: object, low: int, high: int) -> int:
    """An integer in `low` … `high`, both included."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(param, "an integer", value)
    if not low <= value <= high:
        raise ParameterError(param, f"{param} must be between {low} and {high}, got {shown(value)}")
    return value


def number(param: str, value: object, low: float, high: float, *, above_low: bool = False) -> float:
    """A number in `low` … `high`, both included, but for `low` where the value must be above it."""
    read = finite(param, value)
    if above_low and low == read:
        raise ParameterError(param, f"{param} must be greater than {low:g} and at most {high:g}, got {shown(value)}")
    if not low <= read <= high:
        raise ParameterError(param, f"{param} must be between {low:g} and {high:g}, got {shown(value)}")
    return read


def finite(param: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(param, "a number", value)
    try:
        return float(value)
    except OverflowError as error:
        raise ParameterError(param, f"{param} is too large for a number") from error


def json_object(param: str, value: object) -> JsonObject:
    if isinstance(value, dict):
        return value
    raise wrong_type(param, "an object", value)


def at_most(param: str, values: Sized, limit: int) -> None:
    """To be asked before the values are looked at one by one."""
    if len(values) > limit:
        raise ParameterError(param, f"{param} holds {len(values)} items, at most {limit} are allowed")


def texts(param: str, values: Sequence[object], limit: int) -> tuple[str, ...]:
    """At most `limit` strings."""
    at_most(param, values, limit)
    return tuple(text(f"{param}[{place}]", value) for place, value in enumerate(values))


def token_ids(param: str, values: Sequence[object], limit: int) -> tuple[int, ...]:
    """Integers in 0 … `limit` - 1."""
    ids = tuple(value for value in values if type(value) is int and 0 <= value < limit)
    if len(ids) == len(values):
        return ids
    place, wrong = next((place, value) for place, value in enumerate(values) if not (type(value) is int and 0 <= value < limit))
    raise ParameterError(param, f"{param}[{place}] must be a token id between 0 and {limit - 1}, got {shown(wrong)}")
