import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from layered_llm.transport.zmq_socket import MessageContext, open_context


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """Shorter than pytest's own temporary directories, which may not fit a Unix socket's path."""
    with tempfile.TemporaryDirectory(prefix="llm-") as directory:
        yield Path(directory)


@pytest.fixture
async def context() -> AsyncIterator[MessageContext]:
    with open_context() as opened:
        yield opened


@pytest.fixture(params=["ipc", "inproc"])
def address(request: pytest.FixtureRequest, socket_directory: Path) -> str:
    return f"ipc://{socket_directory}/link" if request.param == "ipc" else "inproc://link"
