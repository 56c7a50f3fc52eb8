"""Where the server listens: on this machine alone, or where others reach it.

Must not know: who may do what because of it, peers.

It goes by the addresses of the listening sockets and never by those of a connection: what a proxy on this machine passes on
comes from 127.0.0.1, and a server on all addresses is reached by 127.0.0.1 too.
"""

import ipaddress
import socket
from collections.abc import Iterable

import attrs


@attrs.define(eq=False)
class Listening:
    """What is known so far; until the sockets are there, nothing is taken to be local."""

    is_loopback: bool = False
    """Whether only programs on this machine reach the server."""
    urls: tuple[str, ...] = ()

    def on(self, sockets: Iterable[socket.socket], secure: int = 0) -> None:
        """The server listens on these, the first `secure` of them with TLS."""
        listening = list(sockets)
        tcp = (sock for sock in listening if sock.type == socket.SOCK_STREAM)
        self.urls = tuple(_url(sock, is_secure=place < secure) for place, sock in enumerate(tcp))
        self.is_loopback = bool(listening) and all(map(_is_local, listening))


def _url(sock: socket.socket, *, is_secure: bool) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if sock.family == socket.AF_INET6 else host
    return f"{'https' if is_secure else 'http'}://{shown}:{port}"


def _is_local(sock: socket.socket) -> bool:
    if sock.family == socket.AF_UNIX:
        return True
    return is_loopback_address(str(sock.getsockname()[0]))


def is_loopback_address(text: str) -> bool:
    """Whether this is an IP address of this machine alone; of IPv6 also one that is written as IPv4 in it."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
