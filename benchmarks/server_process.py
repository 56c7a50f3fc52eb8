"""A server in a process of its own, for measurements."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import httpx

START_TIMEOUT_S = 300.0
"""The first start on a machine compiles kernels."""
STOP_TIMEOUT_S = 15.0
POLL_S = 0.02


class ServerError(Exception):
    """It ended, or was not ready in time; all that it wrote."""


@attrs.frozen(kw_only=True)
class ReadyServer:
    """A server that has said 200."""

    url: str
    pid: int
    start_s: float
    """From the start of its process to that answer."""


@contextlib.contextmanager
def local_server(*flags: str, environment: Mapping[str, str] | None = None) -> Iterator[ReadyServer]:
    """Starts `python -m layered_llm` with `flags` and this process's environment, or another one, and ends it. Exits with its
    output when it fails.
    """
    port = free_port()
    command = [sys.executable, "-m", "layered_llm", "--port", str(port), *flags]
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(server(command, f"http://127.0.0.1:{port}", environment or os.environ))
        except ServerError as error:
            raise SystemExit(f"the server did not start:\n{error}") from None


@contextlib.contextmanager
def server(
    command: Sequence[str], url: str, environment: Mapping[str, str], ready_path: str = "/health"
) -> Iterator[ReadyServer]:
    """Starts any server and waits until `ready_path` says 200; ends it behind the block. Raises ServerError."""
    # Whoever ends a measurement early wants the server gone too. As by Ctrl-C, whose exception trio raises only where it may.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output, httpx.Client(timeout=START_TIMEOUT_S) as client:
            started_s = time.perf_counter()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environment), start_new_session=True
            )
            try:
                _wait_ready(process, client, url + ready_path, log)
                yield ReadyServer(url=url, pid=process.pid, start_s=time.perf_counter() - started_s)
            finally:
                _end(process)


def _wait_ready(process: "subprocess.Popen[bytes]", client: httpx.Client, url: str, log: Path) -> None:
    give_up_s = time.perf_counter() + START_TIMEOUT_S
    while not _is_ready(client, url):
        if process.poll() is not None or time.perf_counter() > give_up_s:
            raise ServerError(log.read_text(errors="replace"))
        time.sleep(POLL_S)


def _is_ready(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """With all processes that it started, though it be dead or hang itself."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
