"""The ASGI application, for `hypercorn layered_llm.app`.

Must not know: anything but the composition. Configured by the environment alone, since hypercorn passes no flags on.

Importing this module lets hypercorn's default worker, which knows only asyncio, run the application under Trio.
"""

import logging
import multiprocessing
import sys
from typing import TYPE_CHECKING, Final

from layered_llm.domain.messages.supervision import Role
from layered_llm.service.settings.settings import Settings, SettingsError, ignored_variables, left_to_hypercorn, load
from layered_llm.service.supervisor.supervisor_process import SupervisorAhead, start_ahead

if TYPE_CHECKING:
    from layered_llm.transport.http.hypercorn_server.lifespan import LifespanApplication


def _is_not_hypercorns(record: logging.LogRecord) -> bool:
    """hypercorn's command shows its own records, and lets them propagate as well."""
    return record.name != "hypercorn.error"


def _application() -> "LifespanApplication":
    ahead = None
    try:
        settings = load()
        if settings.certfile is not None or settings.keyfile is not None:
            raise SettingsError("under hypercorn give it the certificate: hypercorn --certfile FILE --keyfile FILE")
        if multiprocessing.parent_process() is not None:  # a worker of hypercorn, which serves what it imports
            ahead = start_ahead(settings)
        return _built(settings, ahead)
    except BaseException as error:
        if ahead is not None:
            ahead.end()
        if not isinstance(error, SettingsError):
            raise
        from layered_llm.service.server.api import is_first_worker  # noqa: PLC0415 - as below

        sys.exit(f"layered-llm: {error}" if is_first_worker() else 1)


def _built(settings: Settings, ahead: SupervisorAhead | None) -> "LifespanApplication":
    """Raises SettingsError."""
    # Imported while the engine's processes start.
    from layered_llm.service.processes.engine_process import set_up_logging  # noqa: PLC0415 - as said above
    from layered_llm.service.server.api import build_api, is_first_worker  # noqa: PLC0415 - as said above
    from layered_llm.service.settings.cli_parser import say  # noqa: PLC0415 - as said above
    from layered_llm.transport.http.hypercorn_server import worker  # noqa: PLC0415 - as said above

    worker.survive_sigterm_in_spawned_worker()
    api = build_api(settings, ahead)
    for ignored in (ignored_variables(), left_to_hypercorn(settings)):
        if ignored and is_first_worker():
            say(ignored)
    worker.install(
        api.options,
        api.begin_drain,
        installed=worker.installed_hypercorn(),
        on_listening=api.note_listening,
        until_drained=api.drain.wait_drained,
    )
    set_up_logging(Role.API, settings)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_hypercorns)
    return api.application


app: Final = _application()
