"""HTTP/1 requests whose answers do not depend on the bytes behind them: h11 and hypercorn 0.18's protocol, mended.

Must not know: the application.

Faults of upstream:
* Bytes behind a request whose connection is to be closed end it with an empty 400, or its response in the middle. There is
  nothing that they could say: they are dropped (RFC 9112, section 9.6).
* An empty line before a request is an error. Old clients send one behind a body (RFC 9112, section 2.2).
* A response has no reason phrase, which is legal, but counted as failed by load generators and shown as None by clients.
* A response that did not wait for the request's body ends the connection without saying so, and the client's next request on it
  fails.
* A connection becomes an HTTP/2 one by `Upgrade: h2c`, whatever HTTP2-Settings say. RFC 9113 has dropped this way, no client of
  this server uses it, and proxies that pass it on are led past their own rules (request smuggling): it is ignored, as any
  upgrade may be. HTTP/2 begins with its preface.
"""

from http import HTTPStatus
from typing import Any, Final

import h11
from hypercorn.protocol.h11 import H11Protocol

_STATUS_LINE_BYTES: Final = len(b"HTTP/1.1 200 ")
_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_NOTHING_MORE: Final = frozenset({h11.MUST_CLOSE, h11.CLOSED})


class TolerantConnection(h11.Connection):
    """Stands in for `h11.Connection` on a server."""

    def send(self, event: Any) -> Any:
        if isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY:
            headers = [*event.headers.raw_items(), (b"connection", b"close")]
            event = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
        data = super().send(event)
        if data is None or not isinstance(event, h11.Response | h11.InformationalResponse) or event.reason:
            return data
        return data[:_STATUS_LINE_BYTES] + _PHRASES.get(event.status_code, b"") + data[_STATUS_LINE_BYTES:]

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

    async def _check_protocol(self, event: h11.Request) -> None:
        if event.method == b"PRI":
            await super()._check_protocol(event)
