"""What one setting is: its type, default, help text and range, and how a value of it is checked.

Must not know: which settings there are, where a value comes from.
"""

import math
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

Field: TypeAlias = "attrs.Attribute[Any]"

_KINDS: Final[dict[type, tuple[str, str]]] = {
    str: ("TEXT", "text"),
    int: ("N", "an integer"),
    float: ("X", "a number"),
    bool: ("BOOL", "true or false"),
}
"""Placeholder in a help text, and what a value has to be, in words."""
_UNITS: Final = {"_s": "SECONDS", "_ms": "MS", "_us": "US", "_bytes": "BYTES"}
"""Placeholders for numbers whose names end in a unit."""


class SettingsError(Exception):
    """A setting has a name or a value that is not allowed; the text names the setting, its source and what is allowed."""


def setting(
    help_text: str,
    *,
    default: Any,
    group: str,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    low: float = 0,
    high: float | None = None,
    is_secret: bool = False,
    limit_reason: str = "",
    placeholder: str = "",
) -> Any:
    """A field of the table: `aliases` are further flags; numbers are in `low` … `high`; a secret is never shown.

    `choices` are in lower case, and values are turned into it. `limit_reason` ends the message for a value that is not allowed.
    `placeholder` stands for the value in the help, where it says more than the type does.
    """
    metadata = {"help": help_text, "group": group, "aliases": aliases, "choices": choices, "low": low, "high": high}
    metadata |= {"is_secret": is_secret, "limit_reason": limit_reason, "placeholder": placeholder}
    return attrs.field(default=default, repr=not is_secret, metadata=metadata, converter=_lower if choices else None)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8: what the system gives may hold any bytes, which Python keeps as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(value: object) -> str:
    """As text for messages, what is no UTF-8 of it in escapes."""
    return str(value).encode(errors="backslashreplace").decode()


def user_path(text: str) -> Path:
    """The path that was typed, `~` as the home directory; of a user who has none, or is not known, as it is."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def flag(name: str) -> str:
    """The command line's spelling of a field's name."""
    return "--" + name.replace("_", "-")


def is_tuple(field: Field) -> bool:
    return typing.get_origin(field.type) is tuple


def base_type(field: Field) -> type:
    """str, int, float or bool behind `X | None` and `tuple[X, ...]`."""
    parts: Sequence[Any] = typing.get_args(field.type) or (field.type,)
    base: type = next(part for part in parts if part is not type(None))
    return base


def metavar(field: Field) -> str:
    placeholder: str = field.metadata["placeholder"]
    unit = next((word for ending, word in _UNITS.items() if field.name.endswith(ending)), "")
    return placeholder or unit or _KINDS[base_type(field)][0]


def shown_default(default: Any) -> str:
    """As a help text has it; empty where nothing is set, and the help text says what that means."""
    match default:
        case None | ():
            return ""
        case bool():
            return "on" if default else "off"
        case float():
            return f"{default:g}"
        case _:
            return str(default)


def kind(field: Field) -> str:
    """What one value of the field has to be, in words."""
    return _KINDS[base_type(field)][1]


def got(field: Field, value: Any) -> str:
    """What was found in place of a value, for the end of a message."""
    return "" if field.metadata["is_secret"] else f", got {value!r}"


def _check_text(field: Field, text: str, name: str) -> None:
    if not is_text(text):
        raise SettingsError(printable(f"{name} must be UTF-8 text{got(field, text)}"))
    if "\0" in text:
        raise SettingsError(f"{name} must not hold a zero byte{got(field, text)}")


def check(field: Field, value: Any, name: str) -> None:
    """Raises SettingsError, which calls the setting `name`, for a value of the right type that is not allowed."""
    meta = field.metadata
    for text in value if isinstance(value, tuple | list) else (value,):
        if isinstance(text, str):
            _check_text(field, text, name)
    reason = f": {meta['limit_reason']}" if meta["limit_reason"] else ""
    if meta["choices"] and _lower(value) not in meta["choices"]:
        raise SettingsError(f"{name} must be one of {', '.join(meta['choices'])}, got {value!r}{reason}")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if not -math.inf < value < math.inf:
        raise SettingsError(f"{name} must be a finite number, got {value:g}")
    if value < meta["low"]:
        raise SettingsError(f"{name} must be at least {meta['low']:g}, got {value:g}")
    if meta["high"] is not None and value > meta["high"]:
        raise SettingsError(f"{name} must be at most {meta['high']:g}, got {value:g}{reason}")
