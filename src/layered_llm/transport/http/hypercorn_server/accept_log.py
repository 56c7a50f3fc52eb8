"""What is logged while no connection can be accepted: a line now and then, in place of trio's ten tracebacks a second.

Must not know: sockets, the application.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from layered_llm.transport.sparse_log import SparseLog

_LOGGER_NAME: Final = "trio.serve_listeners"


class SparseErrors(logging.Filter):
    """Lets a record through only some time behind the one before, and without its traceback, which is always the same."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._now_s = now_s
        self._lines = SparseLog()

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._lines.is_due(self._now_s()):
            return False
        record.exc_info = None
        return True


@contextlib.contextmanager
def sparse_accept_errors(now_s: Callable[[], float]) -> Iterator[None]:
    """As long as it is open, of all servers of this process; `now_s` is a monotonic clock."""
    logger, errors = logging.getLogger(_LOGGER_NAME), SparseErrors(now_s)
    logger.addFilter(errors)
    try:
        yield
    finally:
        logger.removeFilter(errors)
