"""Running the application on sockets of our own, in the current trio task.

Must not know: the application, settings.

The sockets listen before anything slow begins: a port that is taken is an error at once, and cannot be taken meanwhile.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
from hypercorn.config import Config, Sockets
from hypercorn.typing import ASGIFramework
from hypercorn.utils import wrap_app

from layered_llm.transport.http.hypercorn_workarounds import worker
from layered_llm.transport.http.hypercorn_workarounds.options import ServerOptions, configure
from layered_llm.transport.http.hypercorn_workarounds.worker import ShutdownTrigger
from layered_llm.transport.http.tls import TlsFiles


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


async def serve(
    app: ASGIFramework,
    *,
    sockets: Sequence[socket.socket],
    options: ServerOptions,
    on_shutdown_requested: Callable[[], object],
    on_listening: worker.OnListening = worker.unheard,
    tls: TlsFiles | None = None,
    shutdown_trigger: ShutdownTrigger | None = None,
    until_drained: Callable[[], Awaitable[None]] = worker.at_once,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves `app` until `shutdown_trigger` returns, by default until SIGTERM or SIGINT, and then as long as `options` grant.

    Started with the URLs that it listens on. With `tls` all of them are https, and clients choose HTTP/2 in the handshake.
    The caller still owns `sockets`, whose duplicates are closed here.
    """
    worker.install(options, on_shutdown_requested, installed=worker.installed_hypercorn())
    config = Config()
    configure(config, options)
    config.errorlog, config.loglevel = None, "warning"  # its records go where the program's own go
    own = [sock.dup() for sock in sockets]
    if tls is not None:
        config.certfile, config.keyfile = str(tls.certificate), str(tls.key)
    await worker.serve_observed(
        on_shutdown_requested,
        wrap_app(app, config.wsgi_max_body_size, "asgi"),
        config,
        sockets=Sockets(
            secure_sockets=[] if tls is None else own, insecure_sockets=own if tls is None else [], quic_sockets=[]
        ),
        shutdown_trigger=shutdown_trigger,
        on_listening=on_listening,
        until_drained=until_drained,
        task_status=task_status,
    )
