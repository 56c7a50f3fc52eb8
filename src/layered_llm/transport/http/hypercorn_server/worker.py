"""How a worker starts and learns that it is to stop: hypercorn 0.18's entry points, redirected.

Must not know: what the application does at a shutdown.

Faults of upstream:
* Without `-k trio` an application is served by asyncio, where a Trio application answers nothing. The asyncio worker loads
  the application before it looks up its module's `_run`, so that importing the application can replace it.
* With `-w N` the parent sends SIGTERM to all workers as soon as the first has left, which kills those that still drain.
* A worker reacts to the shutdown request by itself: the application hears of it only after the grace for open requests.
* Listeners close at the shutdown request, and the parent's duplicates of them take connections that nobody answers.
* `-w 0` with the trio worker handles no signal.
"""

import importlib.metadata
import multiprocessing
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs
import hypercorn.asyncio.run
import hypercorn.protocol
import hypercorn.protocol.h2
import hypercorn.trio.run
import trio
from hypercorn.config import Config, Sockets
from hypercorn.typing import AppWrapper
from hypercorn.utils import check_multiprocess_shutdown_event

from layered_llm.transport.http.hypercorn_server.accept_log import sparse_accept_errors
from layered_llm.transport.http.hypercorn_server.h2_protocol import BoundedH2Protocol, BoundedStreamBuffer
from layered_llm.transport.http.hypercorn_server.h11_protocol import TolerantH11Protocol
from layered_llm.transport.http.hypercorn_server.options import ServerOptions, configure
from layered_llm.transport.http.hypercorn_server.tcp_server import WatchedTCPServer

SUPPORTED_RELEASE: Final = "0.18"
_LAST_GRACE_S: Final = 0.5
"""What the last bytes have to get out, however long the drain took."""

ShutdownTrigger = Callable[..., Awaitable[None]]

_upstream_worker_serve: Final = hypercorn.trio.run.worker_serve


class UnsupportedHypercorn(RuntimeError):  # noqa: N818 - states what is wrong
    """The installed hypercorn is not the one whose internals these workarounds know."""

    def __init__(self, installed: str) -> None:
        super().__init__(
            f"hypercorn {installed} is installed, and only {SUPPORTED_RELEASE}.* can be told to run this under Trio: "
            f"install hypercorn {SUPPORTED_RELEASE}, or try `hypercorn -k trio layered_llm.app`"
        )


def installed_hypercorn() -> str:
    return importlib.metadata.version("hypercorn")


OnListening = Callable[[Sequence[socket.socket], int], object]


def unheard(_sockets: Sequence[socket.socket], _secure: int) -> None:
    """Nobody asks where the server listens."""


async def at_once() -> None:
    """Waits for no drain: listeners close as soon as the server is asked to stop."""


def install(
    options: ServerOptions,
    on_shutdown_requested: Callable[[], object],
    *,
    installed: str,
    on_listening: OnListening = unheard,
    until_drained: Callable[[], Awaitable[None]] = at_once,
) -> None:
    """Puts every workaround in its place, for all servers of this process; harmless when repeated.

    Args:
        on_shutdown_requested: called in the trio thread when the server is asked to stop, before anything else happens.
        on_listening: called with the listening sockets, and how many of them, the first, have TLS, before the first connection
            is taken.
        until_drained: then awaited while the server still takes connections, so that the application can answer them.
        installed: the version of hypercorn, from `installed_hypercorn`.

    Raises UnsupportedHypercorn.
    """
    if not installed.startswith(f"{SUPPORTED_RELEASE}."):
        raise UnsupportedHypercorn(installed)
    configure(Config, options)
    worker_serve = partial(serve_observed, on_shutdown_requested, on_listening=on_listening, until_drained=until_drained)
    _replace(hypercorn.trio.run, TCPServer=partial(WatchedTCPServer, options), worker_serve=worker_serve)
    _replace(hypercorn.protocol, H11Protocol=TolerantH11Protocol, H2Protocol=partial(BoundedH2Protocol, options))
    _replace(hypercorn.protocol.h2, StreamBuffer=BoundedStreamBuffer)
    _replace(hypercorn.asyncio.run, _run=partial(_run_under_trio, worker_serve))


def _replace(module: object, **attributes: object) -> None:
    for name, value in attributes.items():
        setattr(module, name, value)


def survive_sigterm_in_spawned_worker() -> None:
    """In a process that hypercorn spawned, lets SIGTERM pass: the shutdown event tells the same, and waits for the drain.

    A handler that does nothing and not SIG_IGN, which the worker's own child processes would inherit.
    """
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGTERM, _pass)


def _pass(_signal: int, _frame: object) -> None:
    return


async def serve_observed(
    on_shutdown_requested: Callable[[], object],
    app: AppWrapper,
    config: Config,
    *,
    sockets: Sockets,
    shutdown_trigger: ShutdownTrigger | None = None,
    on_listening: OnListening = unheard,
    until_drained: Callable[[], Awaitable[None]] = at_once,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """hypercorn's `worker_serve`, with word of the shutdown, and on sockets that no child process inherits."""
    listening = (*sockets.secure_sockets, *sockets.insecure_sockets, *sockets.quic_sockets)
    for sock in listening:
        sock.set_inheritable(False)
    on_listening(listening, len(sockets.secure_sockets))

    async def trigger() -> None:
        await (shutdown_trigger or wait_for_stop_signal)()
        start = trio.current_time()
        on_shutdown_requested()
        await until_drained()
        # hypercorn counts its grace from here.
        config.graceful_timeout = max(_LAST_GRACE_S, config.graceful_timeout - (trio.current_time() - start))

    with sparse_accept_errors(trio.current_time):
        await _upstream_worker_serve(app, config, sockets=sockets, shutdown_trigger=trigger, task_status=task_status)


async def wait_for_stop_signal() -> None:
    """Returns at the first SIGTERM, SIGINT or SIGHUP; a second one acts as it did before, and so ends a stuck process.

    A terminal that is closed sends SIGHUP; who started with `nohup` ignores it.
    """
    hang_up = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hang_up) as signals:
        async for _ in signals:
            return


@attrs.frozen
class _AsyncioCall:
    """What `asyncio_worker` hands to its `_run`: a partial of its own `worker_serve`."""

    app: AppWrapper
    config: Config
    sockets: Sockets

    @classmethod
    def of(cls, main: "partial[Any]") -> "_AsyncioCall":
        app, config = main.args
        return cls(app, config, main.keywords["sockets"])


def _run_under_trio(
    worker_serve: Callable[..., Awaitable[None]],
    main: "partial[Any]",
    *,
    shutdown_trigger: "partial[Any] | None" = None,
    **_of_asyncio: object,
) -> None:
    call = _AsyncioCall.of(main)
    for sock in (*call.sockets.secure_sockets, *call.sockets.insecure_sockets):
        sock.listen(call.config.backlog)
    trigger = None
    if shutdown_trigger is not None:
        shutdown_event = shutdown_trigger.args[0]
        trigger = partial(check_multiprocess_shutdown_event, shutdown_event, trio.sleep)
    trio.run(partial(worker_serve, call.app, call.config, sockets=call.sockets, shutdown_trigger=trigger))
