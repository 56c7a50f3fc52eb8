"""The sockets that the server listens on, and whether they are on this machine alone, or where others reach it.

Must not know: who may do what because of it, peers; what is slow to import, since the sockets come before that: a port that is
taken is an error at once, and cannot be taken meanwhile.

It goes by the addresses of the listening sockets and never by those of a connection: what a proxy on this machine passes on
comes from 127.0.0.1, and a server on all addresses is reached by 127.0.0.1 too.
"""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs

BACKLOG: Final = 1024
"""Connections that wait to be accepted."""


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


class CannotListen(Exception):  # noqa: N818 - states what happened
    """The address is taken, not ours, or unknown; the message names it and says why."""


def bind_sockets(host: str, port: int, *, backlog: int) -> tuple[socket.socket, ...]:
    """Listening TCP sockets for every address of `host`, closed on exec; port 0 picks a free one, the same for all.

    Raises CannotListen.
    """
    bound: list[socket.socket] = []
    try:
        for family, address in _addresses(host, port):
            port = bound[0].getsockname()[1] if bound else port
            bound.append(_listen(family, (address[0], port, *address[2:]), backlog))
    except OSError as error:
        for sock in bound:
            sock.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    except UnicodeError as error:  # of the codec for names of the network, which has rules of its own
        raise CannotListen(f"cannot listen on {host}:{port}: this is no name of a host") from error
    return tuple(bound)


def _addresses(host: str, port: int) -> Sequence[tuple[socket.AddressFamily, Any]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((info[0], info[4]) for info in found))


def _listen(family: socket.AddressFamily, address: Any, backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
