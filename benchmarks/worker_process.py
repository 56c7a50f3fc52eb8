"""An engine that is measured in a process of its own (`benchmarks.peers`), as whoever measures it sees it."""

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from benchmarks.peers.protocol import Setup, Size

ROOT: Final = Path(__file__).parents[1]
STOP_TIMEOUT_S: Final = 10.0
ERROR_LINES: Final = 3


class WorkerError(Exception):
    """An engine could not be opened, died, or took too long; one line that says which."""


@attrs.define(eq=False)
class Worker:
    """An open engine. One order at a time."""

    _process: "subprocess.Popen[bytes]"
    _errors: Path
    size: Size = attrs.field(init=False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, setup: Setup, *, timeout_s: float) -> None:
        """Waits until it is ready. Raises WorkerError."""
        self.size = Size(**self._ask(setup._asdict(), timeout_s))

    def call(self, method: str, *, timeout_s: float, **arguments: Any) -> Any:
        """What the engine's method returns. Raises WorkerError; the worker is of no use then."""
        return self._ask({"method": method, "arguments": arguments}, timeout_s)

    def kill(self) -> None:
        """At once, whatever it is computing. Nothing to do where it ended already."""
        self._process.kill()

    def _ask(self, order: Mapping[str, Any], timeout_s: float) -> Any:
        pipe = self._process.stdin
        if pipe is None:
            raise WorkerError("it was started without a pipe")
        try:
            pipe.write(json.dumps(order).encode() + b"\n")
            pipe.flush()
        except BrokenPipeError:
            raise WorkerError(self._last_words()) from None
        line = self._read_line(timeout_s)
        try:
            return json.loads(line)
        except ValueError:
            raise WorkerError(f"no answer but {line[:80]!r}") from None

    def _read_line(self, timeout_s: float) -> bytes:
        line = b""
        give_up_s = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            descriptor = self._process.stdout.fileno() if self._process.stdout else -1
            selector.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, give_up_s - time.monotonic())):
                    raise WorkerError(f"no answer in {timeout_s:.0f} s")
                data = os.read(descriptor, 1 << 16)
                if not data:
                    raise WorkerError(self._last_words())
                line += data
        return line

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        if self._process.returncode is not None and self._process.returncode < 0:
            return f"it was killed by signal {-self._process.returncode}"
        lines = [line.strip() for line in self._errors.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with {self._process.returncode} without a word"


@contextlib.contextmanager
def worker(command: Sequence[str], environment: Mapping[str, str], directory: Path = ROOT) -> Iterator[Worker]:
    """Starts `command` in `directory`, whose engine is still to be opened, and ends it."""
    with tempfile.TemporaryDirectory() as temporary:
        errors = Path(temporary) / "errors"
        with errors.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=dict(environment), cwd=directory
            )
        try:
            yield Worker(process, errors)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Its engine ends with its standard input."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
