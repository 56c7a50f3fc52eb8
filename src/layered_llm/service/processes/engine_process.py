"""What every engine process does first: reads its arguments, follows its supervisor, logs, and says why it cannot go on.

Must not know: what the process is for.

An engine process ignores SIGINT and SIGTERM: whoever signals a whole group or session must not cut requests that the API
process still lets finish. It leaves when it is told Stop, and at the latest when its standard input ends, which is when its
supervisor is gone, for whatever reason.
"""

import argparse
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn

import attrs

from layered_llm.domain.messages.supervision import Role
from layered_llm.service.processes.processes import REASON_MARK, exit_at_stdin_eof, python_module
from layered_llm.service.settings.settings import Settings, flag
from layered_llm.transport.addresses import LinkAddresses

EXIT_FAILED: Final = 1


@attrs.frozen(kw_only=True)
class EngineArguments:
    """What the supervisor tells an engine process on its command line."""

    run_directory: Path
    generation: int
    index: int
    checkpoint: Path
    settings: Settings

    @property
    def addresses(self) -> LinkAddresses:
        return LinkAddresses.in_directory(self.run_directory, generation=self.generation)

    @classmethod
    def parse(cls, role: Role) -> "EngineArguments":
        program = f"python -m layered_llm.service.workers.{role}"
        parser = argparse.ArgumentParser(prog=program, description="Started by the supervisor.")
        for field in attrs.fields(cls):
            if field.type is not Settings:
                parser.add_argument(flag(field.name), type=field.type, required=True)
        words = vars(parser.parse_args())
        return cls(settings=Settings.from_json((words["run_directory"] / "settings.json").read_text()), **words)


def engine_processes(text_workers: int, ranks: int) -> tuple[tuple[Role, int], ...]:
    """The processes of a generation by role and index, those first that take the longest to start."""
    texts = ((Role.TEXT, index) for index in range(text_workers))
    return (*texts, *((Role.RUNTIME, rank) for rank in range(ranks)), (Role.SCHEDULER, 0))


def engine_command(role: Role, index: int, *, run_directory: Path, generation: int, checkpoint: Path) -> tuple[str, ...]:
    """The command of one process, as `ps` shows it; `EngineArguments.parse` takes it apart."""
    named = {"run_directory": run_directory, "generation": generation, "index": index, "checkpoint": checkpoint}
    return python_module(f"layered_llm.service.workers.{role}", *(f"{flag(name)}={value}" for name, value in named.items()))


def run_engine_process(role: Role, work: Callable[[EngineArguments], None], expected: tuple[type[Exception], ...] = ()) -> None:
    """Runs one engine process to its end.

    An exception of the `expected` kinds is a start or a peer that failed: its text is the reason, which the supervisor tells.
    Anything else is our own fault and ends the process with its traceback; the reason is what was raised, without its groups.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    exit_at_stdin_eof(EXIT_FAILED)
    arguments = EngineArguments.parse(role)
    set_up_logging(role, arguments.settings)
    try:
        work(arguments)
    except* expected as group:
        _exit_with([str(error) for error in leaves(group)])
    except* Exception as group:  # noqa: BLE001 - told, with its traceback, and the process ends
        traceback.print_exception(group)
        _exit_with([f"{type(error).__name__}: {error}" for error in leaves(group)])


def _exit_with(reasons: Iterable[str]) -> NoReturn:
    for reason in dict.fromkeys(reasons):
        sys.stderr.write(f"{REASON_MARK}{' '.join(reason.split())}\n")
    sys.stderr.flush()
    os._exit(EXIT_FAILED)  # a device or a socket in an unknown state must not hold the exit up


def set_up_logging(role: Role, settings: Settings) -> None:
    """Log lines on standard error, with the process's role."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(role))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])


class _Lines(logging.Formatter):
    """What an engine process says of its start looks as all that is said of a start; anything else has its time and place."""

    def __init__(self, role: Role) -> None:
        super().__init__(f"%(asctime)s %(levelname)-7s {role}[%(process)d] %(name)s: %(message)s")
        self._is_engine = role not in (Role.API, Role.SUPERVISOR)
        self._plain = logging.Formatter(f"layered-llm: {role}: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        is_plain = self._is_engine and record.levelno == logging.INFO
        return self._plain.format(record) if is_plain else super().format(record)


def leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    """The exceptions in a group and in its groups."""
    return [error for error in all_leaves(group) if isinstance(error, Exception)]


def all_leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The same, with those that are no errors."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(all_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
