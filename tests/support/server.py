"""A real server in processes of its own, found and stopped as an operator does it."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import httpx

from support.eventually import TIMEOUT_S, eventually
from support.processes import FoundProcess, processes_of_environment

SERVED_NAME: Final = "tiny"
_LISTENING: Final = re.compile(r"^layered-llm: listening on (https?)://127\.0\.0\.1:(\d+)", re.MULTILINE)

_READY: Final = re.compile(r"^layered-llm: (?:ready\b|worker \d+ is ready)", re.MULTILINE)

Settings = Mapping[str, object]
"""Settings by their names in the environment, without the prefix and in small letters."""


@attrs.define(eq=False)
class Server:
    """One started server. Its TMPDIR is a directory of its own, by which all that it leaves can be found."""

    process: "subprocess.Popen[bytes]"
    home: Path
    port: int = 0
    scheme: str = "http"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def base_url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """Everything that all processes wrote on standard output and error."""
        return (self.home / "log").read_text(errors="replace")

    def client(self) -> httpx.Client:
        """A client for connections that a test keeps; close it."""
        # Each client would load all certificates, which takes longer than a request.
        return httpx.Client(base_url=self.base_url, timeout=TIMEOUT_S, verify=False)

    def get(self, path: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path)

    def post(self, path: str, body: object) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body)

    def health(self) -> int:
        """The status of GET /health, 0 where nobody answers."""
        try:
            return self.get("/health").status_code
        except httpx.TransportError:
            return 0

    def wait_ready(self, timeout_s: float = TIMEOUT_S) -> None:
        eventually(lambda: self.health() == httpx.codes.OK or self._must_run(), timeout_s)

    def state(self) -> Any:
        """`GET /debug/state`."""
        return self.get("/debug/state").json()

    def metrics(self) -> dict[str, float]:
        """All samples of `GET /metrics` by name and labels."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def total(self, name: str) -> float:
        """The sum over all labels of one metric."""
        return sum(value for sample, value in self.metrics().items() if sample.partition("{")[0] == f"layered_llm_{name}")

    def wait_quiescent(self, timeout_s: float = TIMEOUT_S) -> Any:
        """The state, as soon as nothing is left of any request."""
        eventually(lambda: self.state()["quiescent"], timeout_s)
        return self.state()

    def processes(self) -> tuple[FoundProcess, ...]:
        """All living processes of this server, the started one included."""
        return processes_of_environment(f"TMPDIR={self.home}")

    def process_of(self, role: str) -> FoundProcess:
        """The one engine process of a role, as soon as there is one."""

        def look() -> FoundProcess | None:
            found = [process for process in self.processes() if process.role == role]
            assert len(found) <= 1, found
            return found[0] if found else None

        found = eventually(look)
        assert found is not None
        return found

    def leftovers(self) -> list[Path]:
        """What is left of run directories, sockets and temporary files."""
        base = self.home / f"layered-llm-{os.getuid()}"
        return [path for path in self.home.rglob("*") if path not in (self.home / "log", base)]

    def wait_gone(self, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until no process and no file of this server is left."""
        eventually(lambda: not self.processes(), timeout_s)
        eventually(lambda: not self.leftovers(), timeout_s)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = TIMEOUT_S) -> int:
        """Sends the signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def _must_run(self) -> bool:
        assert self.process.poll() is None, f"exited with {self.process.returncode}: {self.log}"
        return False

    def await_port(self) -> None:
        """Waits for the line that tells the port."""
        found = eventually(lambda: _LISTENING.search(self.log) or self._must_run())
        assert isinstance(found, re.Match)
        self.scheme, self.port = found[1], int(found[2])


def scripted(model: Path, **settings: object) -> dict[str, object]:
    """The settings of a server with the scripted device."""
    return {"model": model, "served_model_name": SERVED_NAME, "device": "scripted", **settings}


def _flag(name: str, value: object) -> str:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"--{dashed}={value}"


@contextlib.contextmanager
def python_server(
    settings: Settings, *, is_ready: bool = True, home_name: str = "", before: Sequence[str] = ()
) -> Iterator[Server]:
    """`python -m layered_llm` with flags, on a free port unless the settings name one; `before` is a command that runs it."""
    flags = [_flag(name, value) for name, value in {"port": 0, **settings}.items()]
    with _started([*before, sys.executable, "-m", "layered_llm", *flags], {}, home_name) as server:
        server.await_port()
        if is_ready:
            server.wait_ready()
        yield server


@contextlib.contextmanager
def hypercorn_server(settings: Settings, *words: str, is_ready: bool = True, scheme: str = "http") -> Iterator[Server]:
    """`hypercorn layered_llm.app`, set by the environment, on a port that was free a moment before."""
    port = free_port()
    hypercorn = str(Path(sys.executable).with_name("hypercorn"))
    environment = {f"LAYERED_LLM_{name.upper()}": str(value) for name, value in settings.items()}
    with _started([hypercorn, "layered_llm.app", "--bind", f"127.0.0.1:{port}", *words], environment) as server:
        server.scheme, server.port = scheme, port
        if is_ready:
            server.wait_ready()
            workers = int(words[words.index("-w") + 1]) if "-w" in words else 1
            eventually(lambda: len(_READY.findall(server.log)) == workers)  # each request may reach another one
        yield server


@contextlib.contextmanager
def failing_server(settings: Settings) -> Iterator[Server]:
    """`python -m layered_llm` that is not expected to listen."""
    flags = [_flag(name, value) for name, value in {"port": 0, **settings}.items()]
    with _started([sys.executable, "-m", "layered_llm", *flags], {}) as server:
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def _started(command: Sequence[str], environment: Mapping[str, str], home_name: str = "") -> Iterator[Server]:
    """Ends a server that still runs, and demands that it leaves in good order and leaves nothing behind."""
    # Paths of ipc sockets are short: the directories that pytest makes are too long.
    top = Path(tempfile.mkdtemp(prefix="llm-"))
    home = top / home_name
    home.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAYERED_LLM_")}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**inherited, **environment, "TMPDIR": str(home), "XDG_RUNTIME_DIR": str(top)},
            start_new_session=True,
        )
    server = Server(process, home)
    try:
        yield server
        if process.poll() is None:
            assert server.stop() == 0, server.log
        server.wait_gone()
    finally:
        for left in server.processes():
            with contextlib.suppress(ProcessLookupError):
                left.send(signal.SIGKILL)
        process.wait()
        shutil.rmtree(top, ignore_errors=True)
