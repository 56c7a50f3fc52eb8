"""HTTP/1 requests whose answers do not depend on the bytes behind them: h11 and hypercorn 0.18's protocol, mended.

Must not know: the application.

Faults of upstream:
* Bytes behind a request whose connection is to be closed end it with an empty 400, or its response in the middle. There is
  nothing that they could say: they are dropped (RFC 9112, section 9.6).
* An empty line before a request is an error. Old clients send one behind a body (RFC 9112, section 2.2).
"""

from typing import Any, Final

import h11
from hypercorn.protocol.h11 import H11Protocol

_NOTHING_MORE: Final = frozenset({h11.MUST_CLOSE, h11.CLOSED})


class TolerantConnection(h11.Connection):
    """Stands in for `h11.Connection` on a server."""

    def receive_data(self, data: bytes) -> None:
        if self.their_state not in _NOTHING_MORE:
            super().receive_data(data)

    def next_event(self) -> Any:
        if self.their_state in _NOTHING_MORE:
            return h11.NEED_DATA
        if self.their_state is h11.IDLE:
            self._drop_empty_lines()
        return super().next_event()

    def _drop_empty_lines(self) -> None:
        data, _ = self.trailing_data
        empty_bytes = len(data) - len(data.lstrip(b"\r\n"))
        if empty_bytes:
            self._receive_buffer.maybe_extract_at_most(empty_bytes)


class TolerantH11Protocol(H11Protocol):
    """Stands in for `hypercorn.protocol.H11Protocol`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connection = TolerantConnection(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)
