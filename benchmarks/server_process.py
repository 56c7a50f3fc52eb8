"""A server in a process of its own, for measurements."""

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx

START_TIMEOUT_S = 300.0
"""The first start on a machine converts the default model."""
STOP_TIMEOUT_S = 15.0
POLL_S = 0.02


@attrs.frozen(kw_only=True)
class ReadyServer:
    """A server whose /health has said 200."""

    url: str
    start_s: float
    """From the start of its process to that answer."""


@contextlib.contextmanager
def local_server(*flags: str) -> Iterator[ReadyServer]:
    """Starts `python -m layered_llm` with this process's environment and `flags`, and ends it. Exits with its output when it
    fails.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends a measurement early wants the server gone too
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output, httpx.Client(timeout=START_TIMEOUT_S) as client:
            started_s = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "layered_llm", "--port", str(port), *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                _wait_ready(process, client, url, log)
                yield ReadyServer(url=url, start_s=time.perf_counter() - started_s)
            finally:
                _end(process)


def _wait_ready(process: "subprocess.Popen[bytes]", client: httpx.Client, url: str, log: Path) -> None:
    give_up_s = time.perf_counter() + START_TIMEOUT_S
    while not _is_ready(client, url):
        if process.poll() is not None or time.perf_counter() > give_up_s:
            raise SystemExit(f"the server did not start:\n{log.read_text(errors='replace')}")
        time.sleep(POLL_S)


def _is_ready(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
