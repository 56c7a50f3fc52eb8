import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import layered_llm
from layered_llm import EngineStartFailed, SamplingParams
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import RequestId
from layered_llm.scheduling.flight import AbortRelease
from layered_llm.service.workers.schedule_trace import ScheduleTrace, TraceFileError, open_trace
from support.byte_checkpoint import write_byte_checkpoint
from support.library import tiny_settings
from support.scheduling_rig import Rig, admit, limits, policy

Event = dict[str, Any]


@contextmanager
def opened(path: Path) -> Iterator[ScheduleTrace]:
    with open_trace(str(path)) as trace:
        assert trace is not None
        yield trace


def play(rig: Rig, trace: ScheduleTrace, start_s: float = 10.0) -> None:
    """A step is sent every second as far as may be, and takes one and a half."""
    now_s = start_s
    while not rig.scheduler.is_quiescent:
        while rig.launch() is not None:
            trace.planned(rig.trace, now_s)
        now_s += 1.5
        result = rig.device.launched[0].result
        rig.finish()
        trace.completed(result, now_s)


def two_requests(in_flight: int = 1) -> Rig:
    rig = Rig(policy=policy(budget=8, in_flight=in_flight))
    rig.admit(admit(0x1A, prompt=10, tokens=3))
    rig.admit(admit(0x2B, prompt=3, tokens=2, choices=2))
    return rig


def events_of(path: Path) -> list[Event]:
    events: list[Event] = json.loads(path.read_text())
    return events


def lanes(events: list[Event]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def spans(events: list[Event], lane: str) -> list[Event]:
    names = lanes(events)
    return [event for event in events if event["ph"] == "X" and names[event["tid"]] == lane]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_there_is_a_lane_for_steps_and_one_for_each_slot(tmp_path: Path, in_flight: int) -> None:
    with opened(tmp_path / "trace.json") as trace:
        play(two_requests(in_flight), trace)
    events = events_of(tmp_path / "trace.json")

    assert "steps" == lanes(events)[0]
    assert {"slot 0", "slot 1"} <= set(lanes(events).values())
    assert "000000000000001a prefill" == spans(events, "slot 0")[0]["name"]
    assert {"request": "000000000000001a", "choice": 0, "tokens": 4, "start": 0} == spans(events, "slot 0")[0]["args"]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_events_of_a_lane_follow_each_other(tmp_path: Path, in_flight: int) -> None:
    with opened(tmp_path / "trace.json") as trace:
        play(two_requests(in_flight), trace)
    events = events_of(tmp_path / "trace.json")

    for lane in lanes(events).values():
        ends = [(event["ts"], event["ts"] + event["dur"]) for event in spans(events, lane)]
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    assert (10_000_000, 1_500_000) == (spans(events, "steps")[0]["ts"], spans(events, "steps")[0]["dur"])


def test_a_step_tells_what_it_computes_and_why_nobody_else_started(tmp_path: Path) -> None:
    with opened(tmp_path / "trace.json") as trace:
        play(two_requests(), trace)

    assert {
        "prefill_tokens": 8,
        "decode_rows": 0,
        "device_us": 0,
        "retired_slots": [],
        "preempted": [],
        "nobody_else_started": "nobody_waits",
    } == spans(events_of(tmp_path / "trace.json"), "steps")[0]["args"]


def test_choices_and_pages_are_counted_with_every_step(tmp_path: Path) -> None:
    with opened(tmp_path / "trace.json") as trace:
        play(two_requests(), trace)
    events = events_of(tmp_path / "trace.json")

    counters = [event["name"] for event in events if event["ph"] == "C"]
    steps = len(spans(events, "steps"))
    assert {"choices": steps, "pages": steps, "step tokens": steps} == {name: counters.count(name) for name in counters}
    pages = next(event["args"] for event in events if event["name"] == "pages")
    assert 64 == sum(pages.values())


def test_a_preemption_is_marked(tmp_path: Path) -> None:
    rig = Rig(limits=limits(pages=10, page_size=4))
    for request in (1, 2):
        rig.admit(admit(request, prompt=4, tokens=20))

    with opened(tmp_path / "trace.json") as trace:
        play(rig, trace)

    assert ["preempted 0000000000000002"] == [
        event["name"] for event in events_of(tmp_path / "trace.json") if event["ph"] == "i"
    ]


def test_an_abort_is_a_span_until_its_pages_are_back(tmp_path: Path) -> None:
    with opened(tmp_path / "trace.json") as trace:
        trace.released(AbortRelease(request=RequestId(0x2B), aborted_us=3_000_000, steps=2), 4.5)

    begin, end = (event for event in events_of(tmp_path / "trace.json") if event.get("cat") == "abort")
    assert ("b", "000000000000002b", 3_000_000, {"steps_in_flight": 2}) == tuple(
        begin[key] for key in ("ph", "id", "ts", "args")
    )
    assert ("e", "000000000000002b", 4_500_000) == tuple(end[key] for key in ("ph", "id", "ts"))


def test_the_trace_says_what_the_machines_clock_shows(tmp_path: Path) -> None:
    with open_trace(str(tmp_path / "trace.json"), now_s=2.0, monotonic_s=9000.5):
        pass

    (sync,) = (event for event in events_of(tmp_path / "trace.json") if event["name"] == "clock_sync")
    assert (2_000_000, 9_000_500_000) == (sync["ts"], sync["args"]["issue_ts"])


def test_what_was_written_before_a_kill_can_be_read_after_each_step(tmp_path: Path) -> None:
    path, rig = tmp_path / "trace.json", two_requests()

    with opened(path) as trace:
        assert ["process_name", "clock_sync"] == [event["name"] for event in events_of(path)]
        for expected in (1, 2, 3):
            rig.launch()
            trace.planned(rig.trace, 0.0)
            result = rig.device.launched[0].result
            rig.finish()
            trace.completed(result, 1.0)
            assert expected == len(spans(events_of(path), "steps"))


def test_the_trace_of_the_engine_before_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path / "trace.json") as trace:
            play(two_requests(), trace)

    assert (tmp_path / "trace.json").read_bytes() == (tmp_path / "trace.json.old").read_bytes()


def test_without_a_path_nothing_is_traced() -> None:
    with open_trace(None) as trace:
        assert trace is None


def test_a_file_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(TraceFileError, match=r"the trace file .*/none/t cannot be written: No such file"),
        opened(tmp_path / "none/t"),
    ):
        pass


def test_a_pipe_that_nobody_reads_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceFileError, match="pipe cannot be written: No such device"), opened(tmp_path / "pipe"):
        pass


@pytest.mark.parametrize(("place", "is_restart"), [("full", False), ("full", True), ("none/t", True)])
def test_on_a_full_disk_and_on_a_restart_serving_goes_on_without_a_trace_and_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str, is_restart: bool
) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with open_trace(str(tmp_path / place), is_restart=is_restart) as trace:
        assert trace is None

    gc.collect()  # a file that is not closed warns here
    (line,) = caplog.messages
    assert "cannot be written: No s" in line


def test_what_a_disk_took_before_it_was_full_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    room_bytes = 3000

    def fill(descriptor: int, data: bytes, at: int) -> int:
        return pwrite(descriptor, data[: max(0, room_bytes - at)], at)

    monkeypatch.setattr(os, "pwrite", fill)
    with opened(tmp_path / "trace.json") as trace:
        play(two_requests(), trace)

    events = events_of(tmp_path / "trace.json")
    assert ("clock_sync", True) == (events[1]["name"], len(events) > 2)


def test_a_disk_that_fails_at_the_closing_costs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path / "trace.json") as trace:
        os.close(trace._file.fileno())

    assert ["the trace may lack its end: Bad file descriptor"] == caplog.messages


def test_a_full_disk_ends_the_trace_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with opened_full() as trace:
        play(two_requests(), trace)

    assert ["the trace ends here: No space left on device"] == caplog.messages


@contextmanager
def opened_full() -> Iterator[ScheduleTrace]:
    with Path("/dev/full").open("wb", buffering=0) as file:
        trace = ScheduleTrace(file)
        yield trace
        trace.close()


def test_a_result_of_another_step_is_our_own_fault(tmp_path: Path) -> None:
    rig = two_requests(in_flight=2)
    with opened(tmp_path / "trace.json") as trace:
        rig.launch()
        first = rig.device.launched[0].result
        rig.launch()
        trace.planned(rig.trace, 0.0)

        with pytest.raises(InvariantViolated, match="step 1 is back, step 2 is the oldest one traced"):
            trace.completed(first, 1.0)


async def test_an_engine_writes_its_steps_into_the_file_of_the_setting(tmp_path: Path) -> None:
    model, path = write_byte_checkpoint(tmp_path), tmp_path / "trace.json"
    async with layered_llm.open_engine(str(model), **tiny_settings(trace_file=str(path))) as engine:
        await engine.generate("abc", SamplingParams(max_tokens=4))

    tokens = [event["args"]["tokens"] for event in spans(events_of(path), "slot 0")]
    assert [3, 1, 1, 1] == tokens[:4]


async def test_an_engine_that_cannot_write_its_trace_does_not_start(tmp_path: Path) -> None:
    model = write_byte_checkpoint(tmp_path)

    with pytest.raises(EngineStartFailed, match=r"the trace file .* cannot be written"):
        async with layered_llm.open_engine(str(model), **tiny_settings(trace_file=str(tmp_path / "none" / "t"))):
            pass
