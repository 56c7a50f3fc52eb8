"""`layered-llm serve`: the API process with hypercorn in it.

Must not know: endpoints, the engine's processes.
"""

import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import Final

import attrs
import trio

from layered_llm.domain.messages.supervision import EnginePhase, Role
from layered_llm.service.processes.engine_process import set_up_logging
from layered_llm.service.processes.process_watch import adopts_orphans, reap_adopted
from layered_llm.service.server.api import Api, build_api
from layered_llm.service.settings.cli_parser import say
from layered_llm.service.settings.settings import Settings, SettingsError
from layered_llm.service.settings.settings_fields import user_path
from layered_llm.service.supervisor.supervisor_process import SupervisorAhead
from layered_llm.transport.http.hypercorn_server import serving
from layered_llm.transport.http.hypercorn_server.tls import BadCertificate, TlsFiles
from layered_llm.transport.http.hypercorn_server.worker import wait_for_stop_signal

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

logger = logging.getLogger(__name__)


def run_server(settings: Settings, sockets: Sequence[socket.socket], ahead: SupervisorAhead) -> int:
    """Serves on `sockets` until SIGTERM, Ctrl-C, or an engine that fails for good; the exit code says which.

    Raises SettingsError.
    """
    set_up_logging(Role.API, settings)
    tls = _tls_files(settings)
    return trio.run(_serve, build_api(settings, ahead), sockets, tls)


def _tls_files(settings: Settings) -> TlsFiles | None:
    if settings.certfile is None or settings.keyfile is None:
        return None
    files = TlsFiles(certificate=user_path(settings.certfile), key=user_path(settings.keyfile))
    try:
        files.check()
    except BadCertificate as error:
        raise SettingsError(str(error)) from error
    return files


async def _serve(api: Api, sockets: Sequence[socket.socket], tls: TlsFiles | None) -> int:
    outcome = _Outcome()
    serve = partial(
        serving.serve,
        sockets=sockets,
        options=api.options,
        tls=tls,
        on_shutdown_requested=api.begin_drain,
        on_listening=api.note_listening,
        shutdown_trigger=partial(_until_over, api, outcome, sockets),
        until_drained=api.drain.wait_drained,
    )
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(serve, api.application)
        say(f"listening on {', '.join(urls)}; answers come when the model is loaded")
    return EXIT_FAILED if outcome.engine_failed else EXIT_OK


@attrs.define
class _Outcome:
    engine_failed: bool = False


async def _until_over(api: Api, outcome: _Outcome, sockets: Sequence[socket.socket]) -> None:
    """Returns when the server is to stop; when it has drained, nobody listens any more."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when_failed, api, outcome, nursery.cancel_scope)
        if adopts_orphans():  # when the supervisor dies, its children do, and become ours
            nursery.start_soon(reap_adopted)
        await wait_for_stop_signal()
        nursery.cancel_scope.cancel(reason="told to stop by a signal")
    for sock in sockets:
        sock.close()  # the server drains on duplicates, and clients must not wait at ours when those are closed


async def _cancel_when_failed(api: Api, outcome: _Outcome, waiting: trio.CancelScope) -> None:
    while api.client.status().phase is not EnginePhase.FAILED:
        await api.client.status_change()
    outcome.engine_failed = True
    waiting.cancel(reason="the engine failed")
