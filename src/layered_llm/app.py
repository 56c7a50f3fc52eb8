"""The ASGI application, for `hypercorn layered_llm.app`.

Must not know: anything but the composition. Configured by the environment alone, since hypercorn passes no flags on.

Importing this module lets hypercorn's default worker, which knows only asyncio, run the application under Trio.
"""

import logging
import sys
from typing import Final

from layered_llm.domain.messages.supervision import Role
from layered_llm.service.api import Api, build_api, is_first_worker
from layered_llm.service.engine_process import set_up_logging
from layered_llm.service.settings import SettingsError, ignored_variables, load
from layered_llm.service.telling import say
from layered_llm.transport.http.hypercorn_workarounds import worker


def _is_not_hypercorns(record: logging.LogRecord) -> bool:
    """hypercorn's command shows its own records, and lets them propagate as well."""
    return record.name != "hypercorn.error"


def _build() -> Api:
    worker.survive_sigterm_in_spawned_worker()
    try:
        settings = load()
        if settings.certfile is not None or settings.keyfile is not None:
            raise SettingsError("under hypercorn give it the certificate: hypercorn --certfile FILE --keyfile FILE")
        api = build_api(settings)
    except SettingsError as error:
        sys.exit(f"layered_llm: {error}" if is_first_worker() else 1)
    ignored = ignored_variables()
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
    return api


app: Final = _build().application
