"""A model hub on this machine, as far as the hub's client asks for a model's files."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from support.eventually import TIMEOUT_S

MODEL: Final = "org/model"
_COMMIT: Final = "a" * 40


@attrs.define(eq=False)
class FakeHub:
    """Has one model: the files of a directory."""

    url: str
    files: Path
    is_asked: threading.Event = attrs.field(factory=threading.Event)
    """For a file's content."""
    may_answer: threading.Event = attrs.field(factory=threading.Event)
    """Set from the start; while it is cleared no file's content comes."""

    def use(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        """Programs that are started from now on ask this hub, and keep what it gives in `cache`."""
        monkeypatch.setenv("HF_ENDPOINT", self.url)
        monkeypatch.setenv("HF_HOME", str(cache))


@contextlib.contextmanager
def fake_hub(files: Path) -> Iterator[FakeHub]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        hub = FakeHub(f"http://127.0.0.1:{server.server_address[1]}", files)
        hub.may_answer.set()
        server.RequestHandlerClass = type("_HandlerOfHub", (_Handler,), {"hub": hub})
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield hub
        finally:
            hub.may_answer.set()
            server.shutdown()
            thread.join(TIMEOUT_S)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *_args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{MODEL}/tree/"):
            self._answer_json([self._entry(file) for file in sorted(self.hub.files.iterdir())])
        elif path.startswith(f"/api/models/{MODEL}"):
            self._answer_json({"id": MODEL, "sha": _COMMIT, "siblings": [], "tags": [], "private": False, "downloads": 0})
        elif path.startswith(f"/{MODEL}/resolve/"):
            self._answer_file(self.hub.files / Path(path).name)
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _entry(self, file: Path) -> dict[str, object]:
        return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _digest(file)}

    def _answer_file(self, file: Path) -> None:
        if self.command == "GET":
            self.hub.is_asked.set()
            self.hub.may_answer.wait(TIMEOUT_S)
        self._answer(200, file.read_bytes(), {"ETag": f'"{_digest(file)}"', "X-Repo-Commit": _COMMIT})

    def _answer_json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        with contextlib.suppress(ConnectionError):  # of a client that was killed
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)
                self.wfile.flush()


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
