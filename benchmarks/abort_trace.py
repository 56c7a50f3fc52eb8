"""Reads from a server's `--trace-file` when each abort was handled and when its request held no page any more.

Both on the machine's monotonic clock, which is one for all of its processes: `time.monotonic()` of a client can be subtracted.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class TracedAbort:
    """One abort, in seconds on the machine's monotonic clock."""

    handled_s: float
    """The scheduler ended the request."""
    freed_s: float
    """The last of its pages was free, or was left to the prefix cache."""
    steps: int
    """Steps in flight that named the request: its pages had to wait for them."""


def read_aborts(path: Path) -> Mapping[int, TracedAbort]:
    """The aborts of a trace by the ids of their requests; the array of a trace that is still written has no end yet."""
    text = path.read_text(encoding="utf-8").rstrip().rstrip(",")
    events: list[dict[str, Any]] = json.loads(text if text.endswith("]") else f"{text}]")
    (sync,) = (event for event in events if event["name"] == "clock_sync")
    offset_us = sync["args"]["issue_ts"] - sync["ts"]
    begins = {event["id"]: event for event in events if event.get("cat") == "abort" and event["ph"] == "b"}
    ends = {event["id"]: event for event in events if event.get("cat") == "abort" and event["ph"] == "e"}
    return {
        int(name, 16): TracedAbort(
            handled_s=(begin["ts"] + offset_us) / 1e6,
            freed_s=(ends[name]["ts"] + offset_us) / 1e6,
            steps=begin["args"]["steps_in_flight"],
        )
        for name, begin in begins.items()
    }
