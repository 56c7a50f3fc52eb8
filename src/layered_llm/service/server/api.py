"""Composes an API process: engine client, HTTP application, lifespan, drain.

Must not know: which server runs the application.
"""

import gc
import importlib.metadata
import math
import multiprocessing
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import attrs
import trio

from layered_llm.domain.messages.supervision import EnginePhase
from layered_llm.domain.metrics import metrics_of
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.model.checkpoint import DEFAULT_MODEL_NAME, model_name
from layered_llm.service.model.settings_checks import check_before_start
from layered_llm.service.processes.run_directory import RunDirectory, RunDirectoryError
from layered_llm.service.server.api_keys import read_admin_keys, read_api_keys
from layered_llm.service.server.console import farewell, tell_phases
from layered_llm.service.server.engine_host import LEAVE_S, EngineHost
from layered_llm.service.server.line_writer import LineWriter
from layered_llm.service.settings.cli_parser import say
from layered_llm.service.settings.settings import Settings, SettingsError
from layered_llm.service.supervisor.supervisor_process import SupervisorAhead, server_owner
from layered_llm.transport.http.application import build_application
from layered_llm.transport.http.exchange.access_log import AccessLog
from layered_llm.transport.http.exchange.api_keys import ApiKeys
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.exchange.refusals import Refusals
from layered_llm.transport.http.exchange.request_checks import PageRules
from layered_llm.transport.http.exchange.settings import About, HttpSettings
from layered_llm.transport.http.hypercorn_server.lifespan import LifespanApplication
from layered_llm.transport.http.hypercorn_server.listening import Listening
from layered_llm.transport.http.hypercorn_server.options import STANDARD_OPTIONS, ServerOptions

BODY_TIMEOUT_S: Final = 60.0
PROCESS_BODIES: Final = 16
CLIENT_BODIES: Final = 4
"""Bodies of the largest size that are taken in at once, where no limit is set."""
RETRY_AFTER_S: Final = 1
AFTER_DRAIN_S: Final = 1.0
"""What the last events of drained streams have to get out, before the server cuts what is left."""
OPEN_TO_ALL: Final = (
    "this server is reached from other machines, and whoever reaches it may use it: it has no API key "
    "(--api-key-file FILE, --api-key KEY or LAYERED_LLM_API_KEY; --host 127.0.0.1 keeps it to this machine)"
)


@attrs.frozen(kw_only=True, eq=False)
class Api:
    """One API process's parts."""

    application: LifespanApplication
    client: EngineClient
    drain: Drain
    keys: ApiKeys
    listening: Listening
    options: ServerOptions
    drain_timeout_s: float

    def note_listening(self, sockets: Sequence[socket.socket], secure: int = 0) -> None:
        """The server listens on these, the first `secure` with TLS; says so where anybody may use it."""
        self.listening.on(sockets, secure)
        if not self.keys.are_needed and not self.listening.is_loopback and is_first_worker():
            say(f"warning: {OPEN_TO_ALL}")

    def begin_drain(self) -> None:
        """No new requests from now on; open ones get their time."""
        # Nothing is open when the engine has failed, and why it did is the last word.
        is_news = not (self.drain.is_active or self.client.status().phase is EnginePhase.FAILED)
        if is_news and (is_first_worker() or self.drain.open_responses):
            say(farewell(self.drain.open_responses, self.drain_timeout_s))
        self.drain.begin()


def build_api(settings: Settings, ahead: SupervisorAhead | None = None) -> Api:
    """The parts, wired; nothing is started before the application's lifespan begins. Raises SettingsError.

    `ahead` is the supervisor, where it was started before this module was imported.
    """
    check_before_start(settings)
    owner = server_owner()
    try:
        RunDirectory.check_place(owner)
    except RunDirectoryError as error:
        raise SettingsError(str(error)) from error
    refusals = Refusals()
    client = EngineClient.drawn(
        pid=os.getpid(),
        max_open_requests=settings.max_open_requests,
        randbelow=secrets.randbelow,
        more_metrics=partial(metrics_of, refusals),
    )
    drain, listening = Drain(settings.drain_timeout_s), Listening()
    lines = LineWriter()
    keys = ApiKeys.of(read_api_keys(settings), read_admin_keys(settings))
    http = build_application(
        engine=client,
        settings=_http_settings(settings),
        keys=keys,
        listening=listening,
        drain=drain,
        wall_clock=time.time,  # noqa: TID251 - the composition root is where the clock is passed in
        new_hex_id=secrets.token_hex,
        access_log=_access_log(settings, lines),
        refusals=refusals,
    )
    host = EngineHost(client, settings, owner, ahead=ahead)
    return Api(
        application=LifespanApplication(
            app=http,
            run_engine=partial(_run_engine, host, client, drain, listening, lines, needs_key=keys.are_needed),
            stop_warning_s=LEAVE_S,
        ),
        client=client,
        drain=drain,
        keys=keys,
        listening=listening,
        drain_timeout_s=settings.drain_timeout_s,
        options=attrs.evolve(
            STANDARD_OPTIONS,
            graceful_timeout_s=settings.drain_timeout_s + AFTER_DRAIN_S,
            write_timeout_s=settings.write_timeout_s,
        ),
    )


async def _run_engine(
    host: EngineHost, client: EngineClient, drain: Drain, listening: Listening, lines: LineWriter, *, needs_key: bool
) -> None:
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(tell_phases, client, drain, listening, worker_number(), needs_key=needs_key))
            nursery.start_soon(freeze_when_ready, client, gc.freeze)
            await host.run()
            nursery.cancel_scope.cancel(reason="the engine is over")
    finally:
        lines.close()


async def freeze_when_ready(client: EngineClient, freeze: Callable[[], object]) -> None:
    """Keeps the garbage collector from all that is there when the engine is ready, most of it code that was imported.

    Looking through it takes a tenth of a second, in which nobody is answered, each time that many objects were made.
    """
    while client.status().phase is not EnginePhase.READY:
        await client.status_change()
    freeze()


def _access_log(settings: Settings, lines: LineWriter) -> AccessLog | None:
    """None where nobody wants one: by default where nobody watches."""
    is_wanted = sys.stderr.isatty() if settings.access_log is None else settings.access_log
    if not is_wanted:
        return None
    wall_clock = time.time  # noqa: TID251 - the composition root is where the clock is passed in
    return AccessLog(write=lines.write, wall_clock=wall_clock, is_json=settings.access_log_format == "json")


def is_first_worker() -> bool:
    """Whether this process is to say what is the same for all of a server: hypercorn numbers the workers that it starts."""
    return worker_number() == 1


def worker_number() -> int:
    """From 1, of hypercorn's workers; 1 for a server without."""
    number = multiprocessing.current_process().name.rpartition("-")[2]
    return int(number) if multiprocessing.parent_process() is not None and number.isdecimal() else 1


def _http_settings(settings: Settings) -> HttpSettings:
    version = importlib.metadata.version("layered-llm")
    return HttpSettings(
        served_model_names=settings.served_model_name or (model_name(settings.model),),
        any_model_name=settings.any_model_name,
        takes_priority=settings.schedule_policy == "priority",
        created_s=int(time.time()),  # noqa: TID251 - as above
        heartbeat_interval_s=settings.heartbeat_interval_s,
        max_body_bytes=settings.max_body_bytes,
        max_unfinished_body_bytes=settings.max_unfinished_body_bytes or PROCESS_BODIES * settings.max_body_bytes,
        max_unfinished_body_bytes_per_client=(
            settings.max_unfinished_body_bytes_per_client or CLIENT_BODIES * settings.max_body_bytes
        ),
        max_unsent_answer_bytes=settings.max_unsent_answer_bytes,
        max_unsent_answer_bytes_per_client=settings.max_unsent_answer_bytes_per_client,
        body_timeout_s=BODY_TIMEOUT_S,
        retry_after_s=RETRY_AFTER_S,
        has_vllm_metrics=settings.metrics_prefix == "vllm",
        first_token_timeout_s=_or_unbounded(settings.first_token_timeout_s),
        idle_timeout_s=_or_unbounded(settings.idle_timeout_s),
        pages=PageRules(
            allowed_origins=frozenset(map(str.lower, settings.allowed_origin)),
            allowed_hosts=frozenset(map(str.lower, (*settings.allowed_host, settings.host))),
        ),
        about=About(
            version=version,
            fingerprint=settings.fingerprint(version),
            model_path=settings.model or DEFAULT_MODEL_NAME,
            settings=settings.shown(),
        ),
    )


def _or_unbounded(limit_s: float | None) -> float:
    return math.inf if limit_s is None else limit_s
