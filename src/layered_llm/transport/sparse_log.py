"""How often a line that others can cause is written: a line now and then, in place of one for each time.

Must not know: what the line says, clocks.
"""

from typing import Final

import attrs

_EVERY_S: Final = 10.0


@attrs.define(eq=False)
class SparseLog:
    """Of one kind of line."""

    _next_s: float = attrs.field(init=False, default=-float("inf"))

    def is_due(self, now_s: float) -> bool:
        """Whether to write the line at `now_s`; then none is due for the next 10 seconds."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _EVERY_S
        return True
