"""The two kinds of exception that cross function boundaries; expected outcomes are values (verdicts), not exceptions.

Must not know: HTTP statuses, process exit codes.
"""


class ParameterError(ValueError):
    """The caller's value is not allowed; says which field, which value, which limit."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


class InvariantViolated(Exception):  # noqa: N818 - states what happened; nobody handles it
    """We are wrong. No recovery inside the process: it dies loudly and its supervisor ends what it held."""
