"""Running the application on sockets of our own, in the current trio task.

Must not know: the application, settings.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence

import trio
from hypercorn.config import Config, Sockets
from hypercorn.typing import ASGIFramework
from hypercorn.utils import wrap_app

from layered_llm.transport.http.hypercorn_server import worker
from layered_llm.transport.http.hypercorn_server.options import ServerOptions, configure
from layered_llm.transport.http.hypercorn_server.tls import TlsFiles
from layered_llm.transport.http.hypercorn_server.worker import ShutdownTrigger


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
