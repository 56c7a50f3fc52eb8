"""How long one response still waits for the engine's next output.

Must not know: HTTP, clocks, what is waited for.

Invariants: only time spent waiting for the engine counts, so that a client who is slow to take what it is sent loses nothing
by it; and only output starts the count again, so that a comment that keeps the connection alive does not.
"""

import attrs

from layered_llm.transport.http.api_error import ApiError, error_of


@attrs.define(eq=False)
class Patience:
    """First with the time to the first token, then, from each output to the next, with the idle time; `inf` is no bound.

    It is that of the whole response: where there are several choices, any of them counts.
    """

    _first_token_s: float
    _idle_s: float
    _has_output: bool = attrs.field(init=False, default=False)
    _left_s: float = attrs.field(init=False, default=attrs.Factory(lambda self: self._first_token_s, takes_self=True))

    @property
    def left_s(self) -> float:
        return self._left_s

    @property
    def is_over(self) -> bool:
        return self._left_s <= 0

    def spend(self, waited_s: float) -> None:
        """So much was waited, and nothing came."""
        self._left_s -= waited_s

    def renew(self) -> None:
        """Output came."""
        self._has_output, self._left_s = True, self._idle_s

    def error(self) -> ApiError:
        """What to tell the client when it is over."""
        if self._has_output:
            return error_of("idle_timeout", f"No token came for {self._idle_s:g} s.")
        return error_of("first_token_timeout", f"No token came within {self._first_token_s:g} s.")
