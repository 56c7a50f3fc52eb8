"""Opens an engine for the program that calls: inside the program, or as processes of its own.

Must not know: requests, threads, HTTP.
"""

import argparse
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.library.engine import Engine
from layered_llm.service.model.checkpoint import model_name
from layered_llm.service.processes.run_directory import Owner
from layered_llm.service.server.embedded import failing_starts, open_embedded_client, until_ready, without_group
from layered_llm.service.server.engine_host import EngineHost
from layered_llm.service.settings.settings import Settings, ignored_variables, load
from layered_llm.service.settings.settings_fields import Field, SettingsError, base_type, check, kind
from layered_llm.service.settings.settings_sources import closest

logger = logging.getLogger(__name__)

_OF_A_SERVER: Final = frozenset(
    {
        "any_model_name", "drain_timeout_s", "first_token_timeout_s", "heartbeat_interval_s", "host", "idle_timeout_s",
        "max_body_bytes", "max_unfinished_body_bytes", "max_unfinished_body_bytes_per_client", "max_unsent_answer_bytes",
        "max_unsent_answer_bytes_per_client", "port", "served_model_name", "write_timeout_s",
    }
)  # fmt: skip
"""Settings that mean nothing without HTTP."""
_OF_PROCESSES: Final = frozenset({"log_level"})
"""Settings that are the program's own affair when the engine runs inside it."""
_QUEUED_PER_RUNNING: Final = 2
"""How many requests a batch holds open for each that can run: the next ones wait in the engine, so that no step has a gap."""


@contextlib.asynccontextmanager
async def open_engine(
    model: str | os.PathLike[str] | None = None, *, processes: bool = False, **settings: Any
) -> AsyncIterator[Engine]:
    """An engine that lives as long as the block, ready when the block begins. To be used under trio.

    Args:
        model: a Hugging Face directory; without it the default model.
        processes: whether text workers, scheduler and runtime are processes of their own, as in a server, which come back
            when one dies; else they are tasks and one thread of this program.
        settings: by the names of the server's settings (`num_pages=4096`, `dtype="float32"`, …). What is not given comes from
            the environment (`LAYERED_LLM_NUM_PAGES`), then from the file that `LAYERED_LLM_CONFIG` names, then from the
            defaults.

    Leaving the block, in whatever way, aborts what is open, and leaves no thread, process or file behind. Several engines in
    one program do not know of each other. An opening that is cancelled ends within moments; a thread that imports or reads
    a file just then ends with that. Raises SettingsError, EngineStartFailed with one line that says why, and RuntimeError
    elsewhere than under trio.
    """
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            "open_engine() is for programs that run under trio, by trio.run(); "
            "layered_llm.LLM is for all others: plain ones, notebooks, asyncio (await asyncio.to_thread(layered_llm.LLM))"
        )
    checked = to_settings(model, settings, processes=processes)
    ignored = ignored_variables()
    if ignored:
        logger.warning("environment variables are %s", ignored)
    async with _open_client(checked, processes=processes) as client:
        limits = client.status().limits
        if limits is None:
            raise InvariantViolated("an engine that is ready has limits")
        engine = Engine(client, model_name(checked.model), limits, _max_open(checked))
        try:
            yield engine
        finally:
            engine.close()


def to_settings(model: str | os.PathLike[str] | None, given: Mapping[str, Any], *, processes: bool) -> Settings:
    """Keyword arguments over the environment over its file over the defaults. Raises SettingsError."""
    fields = {field.name: field for field in attrs.fields(Settings)}
    for name, value in given.items():
        _check_name(name, fields, processes=processes)
        _check_value(fields[name], value)
    values = dict(given)
    if model is not None:
        values["model"] = os.fspath(model)
        _check_value(fields["model"], values["model"])
    return load(argparse.Namespace(**values))


def _check_name(name: str, fields: Mapping[str, Field], *, processes: bool) -> None:
    if name not in fields:
        raise SettingsError(f"{name} is no setting{closest(name, fields)}")
    if name in _OF_A_SERVER:
        raise SettingsError(f"{name} is a setting of the server, an engine alone has none")
    if name in _OF_PROCESSES and not processes:
        raise SettingsError(f"{name} is for processes=True; inside a program the logger 'layered_llm' has the program's level")


def _check_value(field: Field, value: Any) -> None:
    """Types are checked here since keyword arguments, unlike flags, can have any."""
    if value is None and field.default is None:
        return
    wanted = base_type(field)
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        raise SettingsError(f"{field.name} must be {kind(field)}, got {value!r}")
    check(field, value, field.name)


def _max_open(settings: Settings) -> int:
    return min(settings.max_open_requests, settings.max_queued_requests, _QUEUED_PER_RUNNING * settings.max_running_requests)


def _open_client(settings: Settings, *, processes: bool) -> contextlib.AbstractAsyncContextManager[EngineClient]:
    return _open_process_client(settings) if processes else open_embedded_client(settings)


@contextlib.asynccontextmanager
async def _open_process_client(settings: Settings) -> AsyncIterator[EngineClient]:
    """As `open_embedded_client`, with this program as the owner of a whole set of processes."""
    client = EngineClient.drawn(pid=os.getpid(), max_open_requests=settings.max_open_requests, randbelow=secrets.randbelow)
    stay = trio.CancelScope()
    with failing_starts() as start, without_group():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_host, client, settings, stay)
            try:
                await until_ready(client)
                start.is_over = True
                stay.shield = True
                yield client
            finally:
                stay.cancel(reason="the engine is closed")


async def _host(client: EngineClient, settings: Settings, stay: trio.CancelScope) -> None:
    with stay:
        await EngineHost(client, settings, Owner.of(os.getpid()), secrets.token_hex(4)).run()
