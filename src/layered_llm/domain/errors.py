"""The two kinds of exception that cross function boundaries; expected outcomes are values (verdicts), not exceptions.

Must not know: HTTP statuses, process exit codes.
"""

from typing import Final

_SHOWN_LIMIT: Final = 10**20
_SHOWN_CHARS: Final = 40


class ParameterError(ValueError):
    """The caller's value is not allowed; says which field, which value, which limit."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


class InvariantViolated(Exception):  # noqa: N818 - states what happened; nobody handles it
    """We are wrong. No recovery inside the process: it dies loudly and its supervisor ends what it held."""


def shown(value: object) -> str:
    """As a message has it, short whatever it is: the interpreter itself writes no integer of more than some thousand digits."""
    match value:
        case bool() | None:
            return repr(value)
        case int():
            return str(value) if abs(value) < _SHOWN_LIMIT else f"an integer of {value.bit_length()} bits"
        case float():
            return f"{value:g}"
        case str() if len(value) <= _SHOWN_CHARS:
            return repr(value)
        case _:
            return f"a value of type {type(value).__name__}"
