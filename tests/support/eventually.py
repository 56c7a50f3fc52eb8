"""The one way in which tests of real processes wait for something that sends them no event."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
_INTERVAL_S: Final = 0.02


def eventually(look: Callable[[], T], timeout_s: float = TIMEOUT_S) -> T:
    """The first true value that `look` gives. Fails when there is none in time."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline_s, f"still {found!r} after {timeout_s:g} s"
        time.sleep(_INTERVAL_S)
    return found
