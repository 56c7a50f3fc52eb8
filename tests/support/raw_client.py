"""A client on a bare socket, which sends what no client library would, and leaves as clients do."""

import contextlib
import json
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import attrs

from support.eventually import TIMEOUT_S

Leaving = Literal["FIN", "RST"]
DONE: Final = b"data: [DONE]\n\n"


@attrs.define(eq=False)
class RawClient:
    """One connection, and all that came over it."""

    sock: socket.socket
    received: bytes = b""

    def post(self, path: str, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.sock.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    def read_until(self, marker: bytes, count: int = 1) -> None:
        """Reads until `marker` has come `count` times. Fails when the connection ends before."""
        while self.received.count(marker) < count:
            data = self.sock.recv(65536)
            assert data, f"the connection ended before {marker!r}: {self.received!r}"
            self.received += data

    def read_to_end(self) -> bytes:
        """Everything, when the server has closed the connection."""
        with contextlib.suppress(ConnectionResetError):
            while data := self.sock.recv(65536):
                self.received += data
        return self.received

    def leave(self, how: Leaving) -> None:
        """FIN is sent as a half close, since closing a socket with unread data would reset it."""
        if how == "FIN":
            self.sock.shutdown(socket.SHUT_WR)
        else:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sock.close()

    def status(self) -> int:
        """The status of the response that began."""
        self.read_until(b"\r\n")
        return int(self.received.split(b" ", 2)[1])


@contextlib.contextmanager
def raw_client(port: int) -> Iterator[RawClient]:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as sock:
        yield RawClient(sock)
