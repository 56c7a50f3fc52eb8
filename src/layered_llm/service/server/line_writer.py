"""Lines for standard error, written by a thread, so that a terminal or a pipe that takes none delays nobody.

Must not know: what the lines say.
"""

import os
import queue
import threading
from typing import Final

import attrs

MAX_WAITING_LINES: Final = 10_000
CLOSE_S: Final = 0.5
_STDERR: Final = 2


@attrs.define(eq=False)
class LineWriter:
    """Takes lines at any time, in one thread; `close` it when no more come."""

    _fd: int = _STDERR
    _lines: "queue.Queue[str | None]" = attrs.field(init=False, factory=lambda: queue.Queue(MAX_WAITING_LINES))
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    _dropped: int = attrs.field(init=False, default=0)

    def write(self, line: str) -> None:
        """Returns at once; a line that finds too many waiting is dropped, and the next one that does not says how many were."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="line-writer", daemon=True)
            self._thread.start()
        try:
            if self._dropped:
                self._lines.put_nowait(f"{self._dropped} lines of the access log were dropped: nobody took them")
                self._dropped = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Waits until all lines are out, at most `CLOSE_S`."""
        if self._thread is None:
            return
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            data = f"layered-llm: {line}\n".encode() if not line.startswith("{") else f"{line}\n".encode()
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError:  # a full disk or a terminal that is gone is no reason to end the server
                continue
