"""Writes what the scheduler planned, and how long it took, as a file for chrome://tracing and https://ui.perfetto.dev.

Must not know: why a row is in a step.

The format is the array form of Chrome's Trace Event Format. Each step is one write of whole events and the closing bracket over
the bracket before, so that any reader of JSON can read the file while it grows and after a kill.

Lanes: one for steps, one for each slot of the runtime. Steps are shown one after the other, as they are computed: one that was
sent while another ran begins when that one is back. Each abort is a span of its own, from its handling until the pages of its
request are all back. `clock_sync` says what the trace's clock and the machine's monotonic clock, which is the same for every
process, show at one moment.
"""

import contextlib
import errno
import json
import logging
import os
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Final

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from layered_llm.scheduling.flight import AbortRelease
from layered_llm.scheduling.plan import StepTrace, TracedRow
from layered_llm.service.settings.settings_fields import user_path

Event = dict[str, Any]

_PROCESS: Final = 1
_STEPS_LANE: Final = 0
_CLOSING: Final = b"\n]\n"
_DISK_FAULTS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})

logger = logging.getLogger(__name__)


class TraceFileError(Exception):
    """The trace file cannot be made; the text names it and says why."""


@attrs.define(eq=False)
class ScheduleTrace:
    """Writes each step when it is back. When the disk fails it says so once and writes no more: serving goes before looking."""

    _file: FileIO
    _end: int = 0
    """Where the closing bracket begins."""
    _in_flight: deque[tuple[StepTrace, float]] = attrs.field(init=False, factory=deque)
    """Steps and when they were sent, in seconds."""
    _last_end_s: float = attrs.field(init=False, default=0.0)
    _named_lanes: set[int] = attrs.field(init=False, factory=set)
    _has_failed: bool = attrs.field(init=False, default=False)

    def planned(self, trace: StepTrace, now_s: float) -> None:
        """A step was sent. `now_s` counts from any moment, which must be the same for all calls."""
        self._in_flight.append((trace, now_s))

    def completed(self, result: StepCompleted, now_s: float) -> None:
        """The oldest step in flight is back. Raises InvariantViolated for another one."""
        trace, sent_s = self._in_flight.popleft()
        if trace.step != result.step:
            raise InvariantViolated(f"step {result.step} is back, step {trace.step} is the oldest one traced")
        start_s, self._last_end_s = max(sent_s, self._last_end_s), now_s
        span = {"ph": "X", "ts": _us(start_s), "dur": _us(now_s) - _us(start_s)}
        self._write([*self._new_lanes(trace), *_step_events(trace, span, result.device_us)])

    def released(self, release: AbortRelease, now_s: float) -> None:
        """All pages of an aborted request are back."""
        self._write(list(_abort_events(release, now_s)))

    def close(self) -> None:
        """Closes the file, whose array is closed already."""
        _close(self._file)

    def _new_lanes(self, trace: StepTrace) -> Iterator[Event]:
        for lane, name in ((_STEPS_LANE, "steps"), *((_lane(row), f"slot {row.slot}") for row in trace.rows)):
            if lane not in self._named_lanes:
                self._named_lanes.add(lane)
                yield _metadata("thread_name", lane, name=name)
                yield _metadata("thread_sort_index", lane, sort_index=lane)

    def _write(self, events: list[Event]) -> None:
        """Each after a comma and none before one, so that the text and a bracket are valid at any time."""
        self._append(b"".join(b",\n" + _encoded(event) for event in events))

    def _append(self, data: bytes) -> None:
        """Straight to the system, without a thread: it takes microseconds, and a buffer would be lost in a kill."""
        if self._has_failed:
            return
        try:
            _put(self._file, data, self._end)
            self._end += len(data)
        except OSError as error:
            self._has_failed = True
            logger.warning("the trace ends here: %s", error.strerror or error)
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
                _put(self._file, b"", self._end)


@contextmanager
def open_trace(
    path: str | None, *, now_s: float = 0.0, monotonic_s: float = 0.0, is_restart: bool = False
) -> Iterator[ScheduleTrace | None]:
    """A trace into a new file, or None without a path. A file that is there is kept under the name with `.old` after it: it
    may show why the engine was started again. `now_s` and `monotonic_s` are one moment, by the clock of the calls and by the
    machine's.

    None, with one line in the log, where the disk is full or broken, and on a restart whatever is wrong: serving goes on
    without it. Raises TraceFileError for a path of which something else is wrong.
    """
    if path is None:
        yield None
        return
    try:
        trace = _create(user_path(path), _clock_sync(now_s, monotonic_s))
    except OSError as error:
        sentence = f"the trace file {path} cannot be written: {error.strerror or error}"
        if not is_restart and error.errno not in _DISK_FAULTS:
            raise TraceFileError(sentence) from error
        logger.warning("%s; serving goes on without it", sentence)
        yield None
        return
    try:
        yield trace
    finally:
        trace.close()


def _create(path: Path, clock_sync: Event) -> ScheduleTrace:
    if path.is_file():
        path.replace(path.with_name(f"{path.name}.old"))
    with ExitStack() as unless_begun:
        file = open(path, "wb", buffering=0, opener=_open_at_once)  # noqa: SIM115 - closed where it could not be begun
        unless_begun.callback(_close, file)
        name = _metadata("process_name", _STEPS_LANE, name="layered_llm scheduler")
        beginning = b"[\n" + _encoded(name) + b",\n" + _encoded(clock_sync)
        _put(file, beginning, 0)
        unless_begun.pop_all()
    return ScheduleTrace(file, len(beginning))


def _open_at_once(path: str, flags: int) -> int:
    """A named pipe that nobody reads is refused, where opening it would wait for a reader, and the engine with it."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def _put(file: FileIO, data: bytes, at: int) -> None:
    """Writes `data`, and the closing bracket after it. Raises OSError where not all of it has room."""
    whole = data + _CLOSING
    if os.pwrite(file.fileno(), whole, at) < len(whole):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _close(file: FileIO) -> None:
    """A disk that could not take the last writes says so here."""
    try:
        file.close()
    except OSError as error:
        logger.warning("the trace may lack its end: %s", error.strerror or error)


def _step_events(trace: StepTrace, span: Event, device_us: int) -> Iterator[Event]:
    yield {
        "name": f"step {trace.step}",
        "cat": "step",
        "pid": _PROCESS,
        "tid": _STEPS_LANE,
        **span,
        "args": {
            "prefill_tokens": trace.prefill_tokens,
            "decode_rows": trace.decode_rows,
            "device_us": device_us,
            "retired_slots": list(trace.retired),
            "preempted": [_choice_name(request, choice) for request, choice in trace.preempted],
            "nobody_else_started": trace.hold.name.lower(),
        },
    }
    for row in trace.rows:
        yield _row_event(row, span)
    for request, choice in trace.preempted:
        yield {"name": f"preempted {_choice_name(request, choice)}", "cat": "preemption", "ph": "i", "s": "p",
               "pid": _PROCESS, "tid": _STEPS_LANE, "ts": span["ts"]}  # fmt: skip
    yield _counters("choices", span, running=trace.running, waiting=trace.waiting)
    yield _counters("pages", span, used=trace.pages_used, cached=trace.pages_cached, free=trace.pages_free)
    yield _counters("step tokens", span, decode=trace.decode_rows, prefill=trace.prefill_tokens)


def _row_event(row: TracedRow, span: Event) -> Event:
    phase = "prefill" if row.is_prefill else "decode"
    return {
        "name": f"{_choice_name(row.request, row.choice)} {phase}",
        "cat": phase,
        "pid": _PROCESS,
        "tid": _lane(row),
        **span,
        "args": {"request": f"{row.request:016x}", "choice": row.choice, "tokens": row.tokens, "start": row.start},
    }


def _abort_events(release: AbortRelease, now_s: float) -> Iterator[Event]:
    span = {"name": "abort", "cat": "abort", "id": f"{release.request:016x}", "pid": _PROCESS, "tid": _STEPS_LANE}
    yield {**span, "ph": "b", "ts": release.aborted_us, "args": {"steps_in_flight": release.steps}}
    yield {**span, "ph": "e", "ts": _us(now_s)}


def _clock_sync(now_s: float, monotonic_s: float) -> Event:
    args = {"sync_id": "monotonic clock", "issue_ts": _us(monotonic_s)}
    return {"name": "clock_sync", "ph": "c", "pid": _PROCESS, "ts": _us(now_s), "args": args}


def _choice_name(request: int, choice: int) -> str:
    """As the ids of responses end; the first choice of a request needs no number."""
    return f"{request:016x}" + (f"/{choice}" if choice else "")


def _counters(name: str, span: Event, **values: int) -> Event:
    return {"name": name, "ph": "C", "pid": _PROCESS, "ts": span["ts"], "args": values}


def _metadata(kind: str, lane: int, **values: str | int) -> Event:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": lane, "args": values}


def _lane(row: TracedRow) -> int:
    return row.slot + 1


def _encoded(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


def _us(time_s: float) -> int:
    return round(time_s * 1e6)
